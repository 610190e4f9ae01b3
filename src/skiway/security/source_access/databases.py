"""The addresses of databases: SQL catalogs in SQLite files and PostgreSQL servers, and databases that are read over JDBC.

A URL of SQLAlchemy can name hosts, sockets and files in many ways, and drivers fill in what it leaves out: from the
environment, from files in the home of the user, and with the identity of the process. So a URL is taken apart, every part
is checked, and a new one is built in which nothing is left to the driver.

Parameters of a JDBC URL can name files, classes and further hosts. So the address of a connector is a plain URL, such as
`postgresql://user@host:5432/database`, which is taken apart and checked, and the JDBC URL is built from its parts. Host
names are resolved, and the connection is made to an address that was checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from skiway.errors import InvalidArgument
from skiway.security.source_access.access import Location, SourceAccess, location

if TYPE_CHECKING:
    from sqlalchemy import URL

SQLITE: Final = "sqlite:"
POSTGRESQL: Final = ("postgresql:", "postgresql+psycopg:")

_PORT: Final = "5432"
_FILES: Final = ("sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile")
_TICKETS: Final = ("gss", "sspi")
"""Methods of authentication that use Kerberos tickets or the session of the server's own user."""

_PASSED: Final = frozenset(
    [
        *(
            "application_name",
            "connect_timeout",
            "sslmode",
            "sslsni",
            "channel_binding",
            "target_session_attrs",
            "options",
        ),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "sslnegotiation", "require_auth", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "client_encoding"),
    ]
)


def sqlite_file(uri: str) -> Location:
    """The file of a SQLite database."""
    rest = uri.removeprefix(SQLITE)
    if not rest.startswith("///") or "?" in rest or "#" in rest or rest.startswith("///file:"):
        raise InvalidArgument(
            "the URL of a SQLite catalog is sqlite:// and an absolute path, without parameters: sqlite:////path/catalog.db",
            key="location.refused",
        )
    return location(rest.removeprefix("///"))


def checked_database(uri: str, access: SourceAccess, *, password: str = "") -> URL:
    """The URL to connect with; raises if an address or a file in `uri` is not permitted.

    Host names are resolved, and the connection is made to an address that was checked.
    """
    from sqlalchemy import URL

    if uri.startswith(SQLITE):
        return URL.create("sqlite", database=access.check(sqlite_file(uri)).path)
    return _postgresql(uri, access, password)


def _postgresql(uri: str, access: SourceAccess, password: str) -> URL:
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        given = make_url(uri)
    except (ArgumentError, ValueError):
        raise _invalid("it cannot be parsed") from None
    query = dict(given.normalized_query)
    unknown = sorted(query.keys() - _PASSED - {*_FILES, "host", "hostaddr", "port", "user", "password", "dbname"})
    if unknown:
        raise _invalid(f"the parameter {', '.join(unknown)} is not supported")
    if given.password is not None or "password" in query:
        raise _invalid("it contains a password; store it in the credentials of the connector")
    name = given.database or _one(query, "dbname") or given.username or _one(query, "user")
    user = given.username or _one(query, "user")
    if not user:
        raise _invalid("it has no user; without one, the name of the server's own user would be sent")
    if not name or "=" in name or "://" in name:
        raise _invalid("it has no valid name of a database")
    hosts = _hosts(given, query)
    addresses = [_address(host, port, access) for host, port in hosts]
    passed = {key: ",".join(values) for key, values in query.items() if key in _PASSED} | _files(query, access)
    found = {
        "host": ",".join(host for host, _ in hosts),
        "hostaddr": ",".join(addresses),
        "port": ",".join(port for _, port in hosts),
        **passed,
        **_without_ambient(passed, access),
    }
    if not password and not access.ambient_credentials:
        found["password"] = ""  # an explicit empty one keeps libpq from reading PGPASSWORD
    return URL.create("postgresql+psycopg", user, password or None, database=name, query=found)


def _hosts(given: URL, query: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """The hosts with their ports. In the parameters there may be several, and an address for each."""
    ports = [each for value in query.get("port", ()) for each in value.split(",")]
    named = [each for key in ("hostaddr", "host") for value in query.get(key, ()) for each in value.split(",")]
    if len(named) > 1 and "hostaddr" in query and "host" in query:
        raise _invalid("it has both host and hostaddr; give one of them")
    named = named or ([unquote(given.host)] if given.host else [])
    if not named or not all(named):
        raise _invalid("it has no host; without one, a socket of the server's machine would be used")
    found = []
    for place, host in enumerate(named):
        bare, _, port = host.rpartition(":") if host.count(":") == 1 else (host, "", "")
        chosen = port or (ports[place] if place < len(ports) else ports[0] if ports else str(given.port or _PORT))
        if not chosen.isdecimal() or not 0 < int(chosen) < 65536:
            raise _invalid("it has an invalid port")
        found.append((bare or host, chosen))
    return found


def _address(host: str, port: str, access: SourceAccess) -> str:
    """The address to connect to, or an empty text for a permitted socket."""
    if host.startswith(("/", "@")):
        access.check_socket(host)
        access.check_ambient("a connection to a database over a socket")
        return ""
    return str(access.checked_addresses("postgresql", host, int(port))[0])


def _files(query: Mapping[str, Sequence[str]], access: SourceAccess) -> dict[str, str]:
    """The files in the parameters, as paths without symbolic links, all of which are permitted."""
    found = {}
    for key in (each for each in _FILES if each in query):
        place = location(_one(query, key))
        if len(query[key]) > 1 or place.scheme != "file":
            raise _invalid(f"{key} is not the path of one file")
        found[key] = access.check(place).path
    return found


def _without_ambient(given: Mapping[str, str], access: SourceAccess) -> dict[str, str]:
    """Parameters that keep libpq from using passwords, certificates and tickets of this machine."""
    if access.ambient_credentials:
        return {}
    if "sslcert" in given and "sslkey" not in given:
        access.check_ambient("sslcert without sslkey")
    methods = list(filter(None, given.get("require_auth", "").split(",")))
    if any(method.strip() in _TICKETS for method in methods):
        access.check_ambient(f"require_auth={given['require_auth']}")
    if all(method.startswith("!") for method in methods):  # the others are permitted
        methods += [f"!{each}" for each in _TICKETS if f"!{each}" not in methods]
    return {
        "passfile": given.get("passfile", os.devnull),
        "gssencmode": "disable",
        "require_auth": ",".join(methods),
        **({} if "sslcert" in given else {"sslcertmode": "disable"}),
    }


def _one(query: Mapping[str, Sequence[str]], name: str) -> str:
    return (query.get(name) or ("",))[-1]


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the URL of the PostgreSQL catalog cannot be used: {reason}; write postgresql://user@host:5432/database",
        key="location.refused",
    )


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
        raise _invalid_jdbc("it cannot be parsed") from None
    if parts.scheme not in _PORTS:
        raise _invalid_jdbc("its scheme is not one of postgresql, mysql and sqlite")
    if parts.password is not None:
        raise _invalid_jdbc("it contains a password; store it in the credentials of the connector")
    if not parts.hostname or not parts.username:
        raise _invalid_jdbc("it has no host or no user")
    if not parts.path.strip("/") or "/" in parts.path.strip("/"):
        raise _invalid_jdbc("it has no valid name of a database")
    return ("postgresql" if parts.scheme == "postgresql" else "mysql"), parts


def _port(parts: SplitResult, dialect: Dialect) -> int:
    return parts.port or _PORTS[dialect]


def _options(parts: SplitResult, dialect: Dialect) -> str:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    mode = given.pop("sslmode", "prefer")
    if given:
        raise _invalid_jdbc(f"the parameter {', '.join(sorted(given))} is not supported")
    if mode not in _SSL_MODES:
        raise _invalid_jdbc(f"sslmode is {mode!r}, but must be {', '.join(_SSL_MODES)}")
    if dialect == "postgresql":
        return f"?sslmode={mode}&gssEncMode=disable&ApplicationName=skiway"
    modes = {"disable": "DISABLED", "allow": "PREFERRED", "prefer": "PREFERRED", "require": "REQUIRED"}
    return f"?sslMode={modes.get(mode, 'VERIFY_CA')}&{_MYSQL_OPTIONS}"


def _invalid_jdbc(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the address of the database cannot be used: {reason}; write postgresql://user@host:5432/database, "
        "mysql://user@host:3306/database or sqlite:////path/file.db",
        key="location.refused",
    )
