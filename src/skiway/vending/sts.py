"""Temporary credentials from AWS STS, or from a store with the same interface, such as MinIO.

Each session assumes a role with a policy that permits only the access that a caller has to the folder of one table. STS
intersects it with the policies of the role, so a session never has more rights than the role. AWS enforces it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from skiway.errors import LimitExceeded
from skiway.foundation import extras
from skiway.foundation.clock import Clock, utc_now
from skiway.vending.credentials import S3Keys, Sessions, TableAccess, not_issued

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
                "Action": [*_READ, *(_WRITE if access.writes_everything else ())],
                "Resource": f"{arn}/{path}/*",
            },
            *_writing(access, arn),
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


def _writing(access: TableAccess, arn: str) -> list[dict[str, Any]]:
    """What allows to write to a part of the folder only."""
    if access.written is None or not access.writes:
        return []
    return [{"Effect": "Allow", "Action": [*_WRITE], "Resource": f"{arn}/{_literal(access.written.path)}/*"}]


def _literal(path: str) -> str:
    """The path with wildcards and variables of policies escaped, so that it matches only itself."""
    return _WILDCARDS.sub(lambda found: f"${{{found[0]}}}", path)


with extras.needed("aws", "vended credentials"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError


CONFIG: Final = Config(retries={"mode": "standard", "max_attempts": 3}, connect_timeout=5, read_timeout=10)


@dataclass(frozen=True, slots=True)
class StsRole:
    """The role that sessions assume, and how long they last. `external_id` is sent if the role requires one."""

    arn: str
    lifetime_s: int = 3600
    external_id: str = ""

    @property
    def partition(self) -> str:
        """The partition of AWS that the role is in."""
        found = re.match(r"arn:([\w-]+):", self.arn)
        return found[1] if found else "aws"


def sts_client(*, region: str | None, endpoint: str | None, keys: S3Keys | None) -> Any:
    """A client of STS. Without keys, boto3 finds them in the usual places."""
    given: dict[str, str | None] = {}
    if keys is not None:
        given |= {"aws_access_key_id": keys.access_key_id, "aws_secret_access_key": keys.secret_access_key}
        given["aws_session_token"] = keys.session_token or None
    return boto3.session.Session(region_name=region, **given).client("sts", endpoint_url=endpoint, config=CONFIG)


class StsCredentials(Sessions[S3Keys]):
    """Issues credentials of role sessions."""

    def __init__(self, client: Any, role: StsRole, *, clock: Clock = utc_now) -> None:
        super().__init__(clock)
        self._client, self._role = client, role

    @property
    def lifetime_s(self) -> float:
        """See `CredentialsProvider`."""
        return self._role.lifetime_s

    def new(self, access: TableAccess) -> S3Keys:
        """The keys of a new session."""
        external = {"ExternalId": self._role.external_id} if self._role.external_id else {}
        try:
            found = self._client.assume_role(
                RoleArn=self._role.arn,
                RoleSessionName=_session_name(access),
                DurationSeconds=self._role.lifetime_s,
                Policy=session_policy(access, partition=self._role.partition),
                **external,
            )["Credentials"]
        except (BotoCoreError, ClientError) as error:
            raise not_issued("STS", error) from error
        return S3Keys(
            found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], expires_at=found["Expiration"]
        )


def _session_name(access: TableAccess) -> str:
    """The name in the logs of AWS: the caller, or a digest if its name is not allowed there."""
    name = f"skiway-{access.account_id}-{access.caller}"
    if re.fullmatch(r"[\w+=,.@-]{2,64}", name, re.ASCII):
        return name
    return f"skiway-{sha256(name.encode()).hexdigest()[:32]}"
