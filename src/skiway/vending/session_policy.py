"""The IAM policy of a session: it permits only the access that a caller has to the folder of one table.

STS intersects it with the policies of the role, so a session never has more rights than the role.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from skiway.errors import LimitExceeded
from skiway.vending.access import TableAccess

__all__ = ["MAX_CHARACTERS", "session_policy"]

MAX_CHARACTERS: Final = 2048
"""The maximum length of a session policy in AWS."""

_READ: Final = ("s3:GetObject",)
_WRITE: Final = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_WILDCARDS: Final = re.compile(r"[*?$]")


def session_policy(access: TableAccess, *, partition: str = "aws") -> str:
    """The policy as JSON. `partition` is that of the role's ARN, such as `aws-cn`."""
    bucket, path = access.folder.bucket, _literal(access.folder.path)
    arn = f"arn:{partition}:s3:::{bucket}"
    document: dict[str, Any] = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [*_READ, *(_WRITE if access.writes else ())],
                "Resource": f"{arn}/{path}/*",
            },
            {"Effect": "Allow", "Action": "s3:GetBucketLocation", "Resource": arn},
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": arn,
                "Condition": {"StringLike": {"s3:prefix": f"{path}/*"}},
            },
        ],
    }
    text = json.dumps(document, separators=(",", ":"))
    if len(text) > MAX_CHARACTERS:
        raise LimitExceeded(
            f"the policy for credentials of {access.folder} has {len(text)} characters, the maximum is {MAX_CHARACTERS}: "
            "use remote signing, or a warehouse with a shorter path",
            key="vending.policy",
        )
    return text


def _literal(path: str) -> str:
    """The path with wildcards and variables of policies escaped, so that it matches only itself."""
    return _WILDCARDS.sub(lambda found: f"${{{found[0]}}}", path)
