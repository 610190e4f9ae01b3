"""How Spark reads the files of a connector in S3: with the credentials of the connector, never with its own.

The session of Spark has the credentials of the server. A connector could name a bucket that only the server may read, at an
endpoint of its own that has files of the same names, and would get statistics of the server's files. So every read of a
connector's files sets endpoint and credentials for each bucket; they take precedence over all settings of the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from skiway.formats import location

__all__ = ["s3_options"]

_PROVIDERS = "org.apache.hadoop.fs.s3a"


def s3_options(paths: Iterable[str], access: Mapping[str, str] | None) -> dict[str, str]:
    """The options of a read of these files. `access` are S3 properties; with None, Spark uses its own credentials."""
    buckets = {place.bucket for place in map(location, paths) if place.scheme == "s3"} if access is not None else set()
    # Hadoop would reuse a connection to the same bucket that was made with other credentials.
    options = {"fs.s3a.impl.disable.cache": "true"} if buckets else {}
    for bucket in sorted(buckets):
        options |= {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in _settings(access or {}).items()}
    return options


def _settings(access: Mapping[str, str]) -> dict[str, str]:
    key, secret = access.get("s3.access-key-id", ""), access.get("s3.secret-access-key", "")
    token, endpoint = access.get("s3.session-token", ""), access.get("s3.endpoint", "")
    kind = "TemporaryAWSCredentialsProvider" if token else "SimpleAWSCredentialsProvider"
    settings = {
        "aws.credentials.provider": f"{_PROVIDERS}.{kind if key else 'AnonymousAWSCredentialsProvider'}",
        "access.key": key,
        "secret.key": secret,
        "session.token": token,
        "endpoint": endpoint or "s3.amazonaws.com",
        "path.style.access": str(bool(endpoint)).lower(),
        "connection.ssl.enabled": str(urlsplit(endpoint).scheme != "http").lower(),
        "endpoint.region": access.get("s3.region", ""),
    }
    return {name: value for name, value in settings.items() if value}
