"""Authentication of connectors: what is shown of it, and the credentials, which are in a secrets store (`records.secrets`).

Secrets are rejected in addresses and properties, which everyone can read, by their names and by their shapes. Records of
older versions may contain some; these are shown as `****`, and a client that sends `****` back leaves them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from urllib.parse import urlsplit

from skiway.errors import Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.names import HUMPS, PUNCTUATION, SECRETS
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.secrets import SecretName
from skiway.metastore.records.updates import copied
from skiway.model import v1
from skiway.security import MASK, SecretsStore
from skiway.security.redaction import is_secret_name, is_secret_value, secret_in_uri, without_secrets
from skiway.security.source_access import SourceAccess
from skiway.telemetry.job_logs import conceal

NO_SCHEME = "none"
SCHEMES = (NO_SCHEME, "oauth2", "aws-sigv4")
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
WHERE = ("kind", "uri", "properties", "auth.scheme", "auth.properties", "auth.header_hints")
"""The fields that decide where credentials are sent, and how."""
# The required fields of each kind of credentials.
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
    """Raise if a key is the name of a secret, even as part of a longer one such as `s3.secret-access-key`."""
    for key in properties:
        name = f"_{_canonical(key)}"
        if name.endswith("_token_type"):
            continue
        if name.endswith(SECRET_ENDS) or any(f"_{secret}_" in f"{name}_" for secret in SECRETS):
            raise failure(InvalidArgument, "property.secret", field=field, property=key)


def refuse_secret_values(given: Mapping[str, str], before: Mapping[str, str], *, field: str) -> None:
    """Raise if an entry that is new has the name or the shape of a secret.

    Older records may have some, which are masked; they do not prevent other changes.
    """
    for key, value in given.items():
        if before.get(key) == value:
            continue
        if is_secret_name(key):
            raise failure(InvalidArgument, "property.secret", field=field, property=key)
        if is_secret_value(value):
            raise failure(InvalidArgument, "property.secret.value", field=field, property=key)


def refuse_secrets_in(connector: v1.Connector, before: v1.Connector | None = None) -> None:
    """Raise if an address or a property of a connector contains a secret: everyone who sees the connector sees them."""
    before = before or v1.Connector()
    found = secret_in_uri(connector.uri) if connector.uri != before.uri else ""
    if found:
        raise failure(
            InvalidArgument,
            "connector.uri.password" if found == "a password" else "connector.uri.secret",
            field="uri",
            found=found,
        )
    for field, given, known in (
        ("properties", connector.properties, before.properties),
        ("auth.properties", connector.auth.properties, before.auth.properties),
        ("auth.header_hints", connector.auth.header_hints, before.auth.header_hints),
    ):
        refuse_connector_secrets(given, field=field)
        refuse_secret_values(given, known, field=field)


def refuse_old_secrets(connector: v1.Connector, before: v1.Connector, *, replaced: bool) -> None:
    """Raise if secrets that are stored for another address would be used: callers who may change the address cannot read them.

    `replaced` tells that the update has new credentials, or removes the old ones.
    """
    changed = _changed(connector, before)
    if changed and before.auth.secret_id and not replaced:
        raise failure(InvalidArgument, "connector.credentials.again", field="auth.credentials", changed=changed[0])
    for field, entries, known in (
        ("properties", connector.properties, before.properties),
        ("auth.properties", connector.auth.properties, before.auth.properties),
        ("auth.header_hints", connector.auth.header_hints, before.auth.header_hints),
    ):
        masked = _masked(known, is_auth=field != "properties")
        for key in masked if changed else ():
            if entries.get(key) == known[key]:
                raise failure(
                    InvalidArgument, "connector.property.again", field=field, property=key, changed=changed[0]
                )
    if changed and connector.uri == before.uri and secret_in_uri(before.uri):
        raise failure(InvalidArgument, "connector.uri.again", field="uri", changed=changed[0])


def are_sent_alike(connector: v1.Connector, other: v1.Connector) -> bool:
    """Whether two connectors send credentials to the same place in the same way."""
    return not _changed(connector, other)


def _changed(connector: v1.Connector, before: v1.Connector) -> list[str]:
    def value(of: v1.Connector, path: str) -> object:
        part, _, name = path.partition(".")
        found = getattr(of, part)
        return (getattr(found, name) if name else found) or (NO_SCHEME if name == "scheme" else None)

    return [path for path in WHERE if value(connector, path) != value(before, path)]


def scheme(text: str) -> str:
    """The authentication scheme as it is stored; `none` if it is blank."""
    name = text.strip().lower() or NO_SCHEME
    if name not in SCHEMES:
        raise invalid_field("auth.scheme", text, f"use {', '.join(SCHEMES)}")
    return name


def check_credentials(credentials: v1.ConnectorCredentials, access: SourceAccess | None = None) -> None:
    """Raise unless all required fields are set, and `access` permits to use them. No message contains their values."""
    which = credentials.WhichOneof("which")
    if which is None:
        if not credentials.properties and not credentials.headers:
            raise failure(InvalidArgument, "field", field="auth.credentials")
        return
    given = getattr(credentials, which)
    for name in NEEDED[which]:
        if not getattr(given, name).strip():
            raise failure(InvalidArgument, "field", field=f"auth.credentials.{which}.{name}")
    if "endpoint" in NEEDED[which]:
        _check_token_endpoint(given.endpoint, field=f"auth.credentials.{which}.endpoint")
        if access is not None:
            access.check_named("//".join((f"{urlsplit(given.endpoint).scheme}:", urlsplit(given.endpoint).netloc)))
    if which == "cli" and access is not None:
        access.check_ambient("credentials of kind cli")


def _check_token_endpoint(url: str, *, field: str) -> None:
    """Raise unless the URL is a web address."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_valid = False
    if not is_valid:
        wanted = "use an address such as https://host/path, without user and password"
        raise invalid_field(field, "not such an address", wanted)


def shown(connector: v1.Connector) -> v1.Connector:
    """The connector as it is returned to clients."""
    copy = copied(connector)
    copy.uri = without_secrets(copy.uri)
    for entries in (copy.auth.properties, copy.auth.header_hints):
        entries.update(dict.fromkeys(_masked(entries, is_auth=True), MASK))
    copy.properties.update(dict.fromkeys(_masked(copy.properties, is_auth=False), MASK))
    return copy


def _masked(entries: Mapping[str, str], *, is_auth: bool) -> list[str]:
    """The keys of the entries that are shown masked."""

    def is_secret(key: str) -> bool:
        return bool(SENSITIVE & set(_canonical(key).split("_"))) if is_auth else is_secret_name(key)

    return [key for key, value in entries.items() if is_secret(key) or is_secret_value(value)]


def keep_masked(given: MutableMapping[str, str], stored: Mapping[str, str], *, field: str) -> None:
    """Restore values that a client sent back masked."""
    for key, value in list(given.items()):
        if value == MASK:
            if key not in stored:
                raise invalid_field(field, MASK, f"send the value of {key}")
            given[key] = stored[key]


def _canonical(key: str) -> str:
    return PUNCTUATION.sub("_", HUMPS.sub("_", key)).strip("_").lower()


def credentials(realm: Realm, secrets: SecretsStore, connector: v1.Connector) -> v1.ConnectorCredentials | None:
    """The credentials of a connector as it was read, or None.

    Use them to open the upstream of this record; never return them to a client. If the connector has changed since, its newer
    credentials are returned only if they are for the same address.
    """
    connector_id, title = connector.resource_id.id, connector.display_name
    key = keys.connector(realm.account_id, connector_id)
    known = connector
    while True:
        if not known.auth.secret_id:
            return None
        name = SecretName.of(known)
        try:
            data = secrets.get(*name.stored_as)
        except NotFound:
            current = realm.all(CONNECTOR).require(key, name=connector_id).value
            if current.auth.secret_id == name.secret_id:
                raise failure(PreconditionFailed, "connector.credentials.lost", name=title) from None
            if not are_sent_alike(connector, current):
                raise failure(Contention, "connector.changed", name=title) from None
            known = current
            continue
        found_credentials = v1.ConnectorCredentials.FromString(data)
        conceal(*_secrets_in(found_credentials))
        return found_credentials


def _secrets_in(credentials: v1.ConnectorCredentials) -> Iterator[str]:
    """The secrets themselves, without names and addresses. Every header may be one."""
    which = credentials.WhichOneof("which")
    fields = getattr(credentials, which).ListFields() if which else ()
    yield from (value for field, value in fields if is_secret_name(field.name))
    yield from (value for key, value in credentials.properties.items() if is_secret_name(key))
    yield from credentials.headers.values()
