"""What a connector says of its authentication, without what must stay secret.

Secrets are refused where everybody can read them. What merely looks like one is kept, and shown as `****`; who sends
`****` back leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from urllib.parse import urlsplit

from skiway.errors import InvalidArgument
from skiway.formats.web_access import check_named
from skiway.metastore.changes import copied
from skiway.metastore.failures import failure
from skiway.metastore.properties import HUMPS, PUNCTUATION, SECRETS
from skiway.model import v1
from skiway.security import MASK

__all__ = ["SCHEMES", "check_credentials", "keep_masked", "refuse_connector_secrets", "scheme", "shown"]

SCHEMES = ("none", "oauth2", "aws-sigv4")
SECRET_ENDS = ("_token", "_secret", "_password", "_key", "_credential", "_credentials")
SENSITIVE = frozenset(
    [
        "auth",
        "authorization",
        "cookie",
        "jwt",
        "key",
        "pass",
        "passphrase",
        "passwd",
        "pwd",
        "sas",
        "session",
        "sig",
        "signature",
        "token",
    ]
)
SENSITIVE_VALUES = ("bearer ", "basic ")
# What makes no sense without them.
NEEDED = {
    "bearer": ("token",),
    "client": ("endpoint", "client_id", "client_secret"),
    "cli": ("provider",),
    "aws": ("access_key_id", "secret_access_key"),
    "aws_web_identity": ("role_arn",),
    "aws_assume_role": ("role_arn",),
    "rfc8693": ("endpoint",),
    "azure": ("endpoint",),
    "gcp": ("endpoint",),
}


def refuse_connector_secrets(properties: Iterable[str], *, field: str) -> None:
    """Raise if a key is what secrets are called, also as part of a longer one such as `s3.secret-access-key`."""
    for key in properties:
        said = f"_{_canonical(key)}"
        if said.endswith("_token_type"):
            continue
        if said.endswith(SECRET_ENDS) or any(f"_{secret}_" in f"{said}_" for secret in SECRETS):
            raise failure(InvalidArgument, "property.secret", field=field, property=key)


def scheme(text: str) -> str:
    """The scheme of authentication as it is kept; none is `none`."""
    said = text.strip().lower() or "none"
    if said not in SCHEMES:
        wanted = f"use {', '.join(SCHEMES)}"
        raise failure(InvalidArgument, "field.invalid", field="auth.scheme", found=text, wanted=wanted)
    return said


def check_credentials(credentials: v1.ConnectorCredentials) -> None:
    """Raise unless they say all that is needed; what they say is in no message."""
    which = credentials.WhichOneof("which")
    if which is None:
        raise failure(InvalidArgument, "field", field="auth.credentials")
    given = getattr(credentials, which)
    for name in NEEDED[which]:
        if not getattr(given, name).strip():
            raise failure(InvalidArgument, "field", field=f"auth.credentials.{which}.{name}")
    if "endpoint" in NEEDED[which]:
        _check_token_endpoint(given.endpoint, field=f"auth.credentials.{which}.endpoint")


def _check_token_endpoint(url: str, *, field: str) -> None:
    """Raise unless it is a web address that tokens may be asked at, as far as that can be told by looking at it."""
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_fine = False
    if not is_fine:
        wanted = "give an address such as https://host/path, without a user or password in it"
        raise failure(InvalidArgument, "field.invalid", field=field, found="another text", wanted=wanted)
    check_named(f"{parts.scheme}://{parts.netloc}")


def shown(connector: v1.Connector) -> v1.Connector:
    """The connector as it is answered."""
    copy = copied(connector)
    for entries in (copy.auth.properties, copy.auth.header_hints):
        for key, value in list(entries.items()):
            if SENSITIVE & set(_canonical(key).split("_")) or value.lower().startswith(SENSITIVE_VALUES):
                entries[key] = MASK
    return copy


def keep_masked(given: MutableMapping[str, str], stored: Mapping[str, str], *, field: str) -> None:
    """Put back what was sent as it was shown."""
    for key, value in list(given.items()):
        if value == MASK:
            if key not in stored:
                wanted = f"give the value of {key} itself"
                raise failure(InvalidArgument, "field.invalid", field=field, found=MASK, wanted=wanted)
            given[key] = stored[key]


def _canonical(key: str) -> str:
    return PUNCTUATION.sub("_", HUMPS.sub("_", key)).strip("_").lower()
