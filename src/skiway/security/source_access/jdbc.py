"""The addresses of databases that are read over JDBC.

Parameters of a JDBC URL can name files, classes and further hosts. So the address of a connector is a plain URL, such as
`postgresql://user@host:5432/database`, which is taken apart and checked, and the JDBC URL is built from its parts. Host names
are resolved, and the connection is made to an address that was checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from skiway.errors import InvalidArgument
from skiway.security.source_access.databases import SQLITE, sqlite_file
from skiway.security.source_access.policy import SourceAccess

__all__ = ["Dialect", "JdbcDatabase", "check_named_database", "checked_jdbc"]

Dialect = Literal["postgresql", "mysql", "sqlite"]

_PORTS: Final = {"postgresql": 5432, "mysql": 3306}
_MYSQL_OPTIONS: Final = "&".join(
    [
        *("allowLoadLocalInfile=false", "autoDeserialize=false"),
        "useCursorFetch=true",  # otherwise the driver reads a whole table into memory
        *("connectionTimeZone=UTC", "forceConnectionTimeZoneToSession=true"),
        *("tinyInt1isBit=false", "yearIsDateType=false"),  # a tinyint(1) can have any small number
    ]
)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca")


@dataclass(frozen=True, slots=True)
class JdbcDatabase:
    """A database that may be opened: its JDBC URL, which has no secrets, and the user."""

    dialect: Dialect
    url: str
    user: str = ""


def checked_jdbc(uri: str, access: SourceAccess) -> JdbcDatabase:
    """The database at `uri`; raises if its address or file is not permitted."""
    if uri.startswith(SQLITE):
        return JdbcDatabase("sqlite", f"jdbc:sqlite:{access.check(sqlite_file(uri)).path}")
    dialect, parts = _parts(uri)
    port = _port(parts, dialect)
    address = access.checked_addresses(dialect, parts.hostname or "", port)[0]
    host = f"[{address}]" if address.version == 6 else str(address)
    name = quote(unquote(parts.path.strip("/")), safe="")
    return JdbcDatabase(
        dialect, f"jdbc:{dialect}://{host}:{port}/{name}{_options(parts, dialect)}", unquote(parts.username or "")
    )


def check_named_database(uri: str, access: SourceAccess) -> None:
    """Raise unless `uri` is an address of a database that could be permitted; host names are not resolved."""
    if uri.startswith(SQLITE):
        access.check(sqlite_file(uri))
        return
    dialect, parts = _parts(uri)
    _options(parts, dialect)
    host = parts.hostname or ""
    access.check_named(f"{dialect}://{f'[{host}]' if ':' in host else host}:{_port(parts, dialect)}")


def _parts(uri: str) -> tuple[Dialect, SplitResult]:
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018 - raises ValueError
    except ValueError:
        raise _invalid("it cannot be parsed") from None
    if parts.scheme not in _PORTS:
        raise _invalid("its scheme is not one of postgresql, mysql and sqlite")
    if parts.password is not None:
        raise _invalid("it contains a password; store it in the credentials of the connector")
    if not parts.hostname or not parts.username:
        raise _invalid("it has no host or no user")
    if not parts.path.strip("/") or "/" in parts.path.strip("/"):
        raise _invalid("it has no valid name of a database")
    return ("postgresql" if parts.scheme == "postgresql" else "mysql"), parts


def _port(parts: SplitResult, dialect: Dialect) -> int:
    return parts.port or _PORTS[dialect]


def _options(parts: SplitResult, dialect: Dialect) -> str:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    mode = given.pop("sslmode", "prefer")
    if given:
        raise _invalid(f"the parameter {', '.join(sorted(given))} is not supported")
    if mode not in _SSL_MODES:
        raise _invalid(f"sslmode is {mode!r}, but must be {', '.join(_SSL_MODES)}")
    if dialect == "postgresql":
        return f"?sslmode={mode}&gssEncMode=disable&ApplicationName=skiway"
    modes = {"disable": "DISABLED", "allow": "PREFERRED", "prefer": "PREFERRED", "require": "REQUIRED"}
    return f"?sslMode={modes.get(mode, 'VERIFY_CA')}&{_MYSQL_OPTIONS}"


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the address of the database cannot be used: {reason}; write postgresql://user@host:5432/database, "
        "mysql://user@host:3306/database or sqlite:////path/file.db",
        key="location.refused",
    )
