"""Databases with a catalog: every way to name a host, a socket or a file is checked, and nothing is left to the driver."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, PermissionDenied, SkiwayError
from skiway.formats import open_source
from skiway.security.source_access import SourceAccess
from skiway.security.source_access import access as decisions
from skiway.security.source_access.databases import checked_database


def access(*rules: str, **more: Any) -> SourceAccess:
    more = {"ambient_credentials": False, **more}
    return SourceAccess(addresses=tuple(map(AddressRule.parsed, rules)), for_callers=True, **more)


def query(uri: str, allowed: SourceAccess, **more: str) -> dict[str, Any]:
    return dict(checked_database(uri, allowed, **more).query)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://u@169.254.169.254/db",
        "postgresql://u@10.0.0.1/db",
        "postgresql://u@127.0.0.1:5433/db",
        "postgresql+psycopg://u@127.0.0.1:5433/db",
        "postgresql://u@/db?host=127.0.0.1&port=5433",
        "postgresql://u@127.0.0.1/db?host=169.254.169.254",
        "postgresql://u@127.0.0.1/db?hostaddr=169.254.169.254",
        "postgresql://u@/db?hostaddr=10.0.0.1",
        "postgresql://u@/db?host=127.0.0.1,10.0.0.1",
        "postgresql://u@/db?host=127.0.0.1&host=10.0.0.1:5432",
        "postgresql://u@/db?host=127.0.0.1:5433",
        "postgresql://u@[::ffff:10.0.0.1]/db",
        "postgresql://u@/db?host=/var/run/postgresql",
        "postgresql://u@%2Fvar%2Frun%2Fpostgresql/db",
        "postgresql://u@/db?host=@abstract",
    ],
)
def test_forbidden_host_is_refused_however_it_is_named(uri: str) -> None:
    with pytest.raises(PermissionDenied, check=lambda error: error.key == "address.refused"):
        checked_database(uri, access("127.0.0.1:5432"))


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://u@/db",
        "postgresql:///db",
        "postgresql://127.0.0.1/db",
        "postgresql://u@127.0.0.1/db?service=prod",
        "postgresql://u@127.0.0.1/db?servicefile=/etc/x",
        "postgresql://u@127.0.0.1/host%3Devil",
        "postgresql://u@127.0.0.1/?dbname=host%3D10.0.0.1",
        "postgresql://u@127.0.0.1/db?krbsrvname=x",
        "postgresql://u:planted@127.0.0.1/db",
        "postgresql://u@127.0.0.1/db?password=planted",
        "postgresql://u@127.0.0.1:99999999/db",
        "postgresql://u@127.0.0.1:x/db",
        "postgresql://u@/db?host=127.0.0.1&hostaddr=127.0.0.1",
    ],
)
def test_incomplete_and_unknown_urls_are_rejected(uri: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked_database(uri, access("loopback"))
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("parameter", ["sslkey", "sslcert", "sslrootcert", "sslcrl", "passfile"])
def test_files_of_credentials_must_be_open_to_sources(parameter: str, tmp_path: Path) -> None:
    allowed = access("loopback", local_roots=(str(tmp_path),))
    uri = "postgresql://u@127.0.0.1/db?{}={}" + (f"&sslkey={tmp_path}/key" if parameter == "sslcert" else "")
    assert query(uri.format(parameter, tmp_path / "f"), allowed)[parameter] == f"{tmp_path}/f"
    for path in ("/etc/ssl/private/server.key", "~/.pgpass", "/root/.pgpass"):
        with pytest.raises(PermissionDenied, match="not open to sources"):
            checked_database(uri.format(parameter, path), allowed)


@pytest.mark.parametrize(
    "parameters",
    [
        "passfile={0}/a&passfile={0}/b",
        "passfile=/etc/shadow&passfile=",
        "sslkey=s3://bucket/key",
        "sslkey=file://host/key",
    ],
)
def test_each_file_of_credentials_is_one_path_on_this_machine(parameters: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidArgument, PermissionDenied), check=lambda error: error.key == "location.refused"):
        checked_database(
            f"postgresql://u@127.0.0.1/db?{parameters.format(tmp_path)}",
            access("loopback", local_roots=(str(tmp_path),)),
        )


def test_links_to_files_of_credentials_are_resolved(tmp_path: Path) -> None:
    allowed = access("loopback", local_roots=(str(tmp_path / "open"),))
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "inside").symlink_to(tmp_path / "open" / "file")
    (tmp_path / "open" / "outside").symlink_to(tmp_path / "file")
    uri = f"postgresql://u@127.0.0.1/db?passfile={tmp_path}/open"
    assert query(f"{uri}/inside", allowed)["passfile"] == f"{tmp_path}/open/file"
    with pytest.raises(PermissionDenied, match="not open to sources"):
        checked_database(f"{uri}/outside", allowed)


def test_certificates_and_tickets_of_this_machine_are_not_used(tmp_path: Path) -> None:
    uri, allowed = "postgresql://u@127.0.0.1/db", access("loopback", local_roots=(str(tmp_path),))
    found = query(uri, allowed)
    assert (found["sslcertmode"], found["gssencmode"], found["require_auth"]) == ("disable", "disable", "!gss,!sspi")
    assert query(f"{uri}?require_auth=!password,!gss", allowed)["require_auth"] == "!password,!gss,!sspi"
    assert query(f"{uri}?require_auth=scram-sha-256", allowed)["require_auth"] == "scram-sha-256"
    own = query(f"{uri}?sslcert={tmp_path}/cert&sslkey={tmp_path}/key", allowed)
    assert (own["sslcert"], own["sslkey"], "sslcertmode" in own) == (f"{tmp_path}/cert", f"{tmp_path}/key", False)
    for parameters in (f"sslcert={tmp_path}/cert", "require_auth=gss", "require_auth=password,sspi"):
        with pytest.raises(PermissionDenied, match="credentials of the server"):
            checked_database(f"{uri}?{parameters}", allowed)
    lent = query(f"{uri}?require_auth=gss", access("loopback", ambient_credentials=True))
    assert lent["require_auth"] == "gss"
    assert not lent.keys() & {"sslcertmode", "gssencmode", "passfile", "password"}


def test_files_of_sqlite_must_be_open_to_sources(tmp_path: Path) -> None:
    allowed = access(local_roots=(str(tmp_path / "open"),))
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link.db").symlink_to(tmp_path / "catalog.db")
    assert checked_database(f"sqlite:///{tmp_path}/open/catalog.db", allowed).database == f"{tmp_path}/open/catalog.db"
    for path in (tmp_path / "catalog.db", tmp_path / "open" / "link.db"):
        with pytest.raises(PermissionDenied, match="not open to sources"):
            checked_database(f"sqlite:///{path}", allowed)


@pytest.mark.parametrize(
    "uri",
    [
        "mysql://u@127.0.0.1/db",
        "mssql+pyodbc://u@127.0.0.1/db",
        "oracle://u@127.0.0.1/db",
        "duckdb:////etc/passwd",
        "postgresql+psycopg2://u@127.0.0.1/db",
        "postgresql+asyncpg://u@127.0.0.1/db",
        "sqlite+pysqlite:////etc/passwd",
        "sqlite:///file:/etc/passwd?uri=true",
        "sqlite://",
        "sqlite:///relative.db?mode=ro",
        "POSTGRESQL://u@127.0.0.1/db",
    ],
)
@pytest.mark.parametrize("options", [{}, {"iceberg.source": "sql"}], ids=["guessed", "sql"])
def test_other_databases_are_refused(uri: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, check=lambda error: error.key == "location.refused"):
        open_source("iceberg", uri, options=options, access=SourceAccess())


def test_connection_is_made_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = iter(["8.8.8.8", "169.254.169.254"])
    monkeypatch.setattr(decisions, "resolved", lambda *_: iter([ip_address(next(addresses))]))
    found = query("postgresql://u@db.example.com:6432/db?sslmode=verify-full", access("public"))
    assert (found["host"], found["hostaddr"], found["port"]) == ("db.example.com", "8.8.8.8", "6432")
    assert found["sslmode"] == "verify-full"
    with pytest.raises(PermissionDenied):
        checked_database("postgresql://u@db.example.com/db", access("public"))


def test_sockets_must_be_named_by_the_operator(tmp_path: Path) -> None:
    uri = f"postgresql://u@/db?host={tmp_path}"
    with pytest.raises(PermissionDenied, match=r"sources\.addresses"):
        checked_database(uri, access("loopback", "unix:/elsewhere"))
    with pytest.raises(PermissionDenied, match="credentials of the server"):
        checked_database(uri, access(f"unix:{tmp_path}"))
    assert query(uri, access(f"unix:{tmp_path}", ambient_credentials=True))["host"] == str(tmp_path)


class Database(threading.Thread):
    """A server that asks for a password in plain text, and records what it receives."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.received = b""
        self.start()

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                data = client.recv(1000)
                if data[4:8] == b"\x04\xd2\x16/":  # asks for TLS
                    client.sendall(b"N")
                    data = client.recv(1000)
                self.received += data
                client.sendall(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
                self.received += client.recv(1000)


@pytest.fixture
def database() -> Iterator[Database]:
    server = Database()
    yield server
    server.listening.close()


def test_passwords_of_the_environment_are_not_sent(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "passwords").write_text("*:*:*:*:planted-in-a-file\n")
    (tmp_path / "passwords").chmod(0o600)
    monkeypatch.setenv("PGPASSWORD", "planted-in-the-environment")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passwords"))
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    uri = f"postgresql://somebody@127.0.0.1:{database.port}/db"

    def list_with(**credentials: str) -> None:
        with pytest.raises(SkiwayError, match="does not respond"):
            open_source("iceberg", uri, credentials=credentials, access=access("loopback")).namespaces()

    list_with()
    assert b"somebody" in database.received
    assert b"planted" not in database.received
    list_with(password="own-password")
    assert b"own-password" in database.received
