"""Signatures of requests to S3: AWS Signature Version 4."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from skiway.vending.credentials import S3Keys

__all__ = ["ALGORITHM", "TIME_FORMAT", "signed_headers"]

ALGORITHM: Final = "AWS4-HMAC-SHA256"
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_SAFE: Final = "-_.~"


def signed_headers(
    keys: S3Keys,
    *,
    method: str,
    path: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    region: str,
    at: datetime,
    service: str = "s3",
) -> Mapping[str, str]:
    """The headers to sign, in lower case, together with `authorization`.

    `path` and `parameters` are decoded. `headers` are all that is signed: they include `host` and `x-amz-content-sha256`.
    """
    moment = at.strftime(TIME_FORMAT)
    signed = {**headers, "x-amz-date": moment}
    if keys.session_token:
        signed["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            quote(path, safe=f"/{_SAFE}"),
            "&".join(f"{name}={value}" for name, value in sorted(_encoded(parameters))),
            *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
            "",
            names,
            signed["x-amz-content-sha256"],
        ]
    )
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    to_sign = f"{ALGORITHM}\n{moment}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(_key(keys, moment[:8], region, service), to_sign.encode(), sha256).hexdigest()
    credential = f"{keys.access_key_id}/{scope}"
    return {
        **signed,
        "authorization": f"{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}",
    }


def _encoded(parameters: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(quote(name, safe=_SAFE), quote(value, safe=_SAFE)) for name, value in parameters.items()]


def _key(keys: S3Keys, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), sha256).digest()
    return key
