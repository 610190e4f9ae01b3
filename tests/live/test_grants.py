"""Grants as the real client sees them: objects that are not granted do not exist, and changes need a privilege."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from live.clients import Client, Session, server_environment
from live.servers import LiveServer, serving
from ports import free_port

SKIWAY = str(Path(sys.executable).with_name("skiway"))
TABLES = (
    "CREATE SCHEMA db.sales",
    "CREATE TABLE db.sales.people AS SELECT 1 AS id, 'Ada' AS name",
    "CREATE SCHEMA db.hr",
    "CREATE TABLE db.hr.salaries AS SELECT 1 AS id, 99 AS eur",
)


def skiway(*words: str, **variables: str) -> str:
    done = subprocess.run(
        [SKIWAY, *words], env=server_environment() | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass(frozen=True)
class Secured:
    """A lake with tokens: `boss` is its administrator, `ada` a member without any rights but grants."""

    client: Client
    server: LiveServer
    boss: str
    ada: str

    def attached(self, token: str) -> Session:
        secret = f"CREATE SECRET s (TYPE airport, auth_token '{token}', SCOPE '{self.server.location}')"
        return self.client.session(secret, self.server.attach())

    def grant(self, name: str, privilege: str) -> None:
        location = f"127.0.0.1:{self.server.port}"
        words = ("grants", "create", name, "--to", "user:ada", "--privilege", privilege)
        skiway(*words, SKIWAY_SERVER=location, SKIWAY_TOKEN=self.boss)


@pytest.fixture
def secured(client: Client, folder: Path) -> Iterator[Secured]:
    place = Path(tempfile.mkdtemp(dir=folder))
    home, port = place / "home", free_port()
    tokens = [
        skiway("tokens", "create", name, "--account", "default", "--role", role, "--home", str(home))
        for name, role in (("boss", "administrator"), ("ada", "member"))
    ]
    words = [SKIWAY, "serve", "--home", str(home), "--set", "auth.mode=token"]
    words += ["--grpc", f"127.0.0.1:{port}", "--http", "127.0.0.1:0"]
    with serving(lambda at: LiveServer(words, "lake", at, port, ready_file=home / "ready.json"), place) as server:
        found = Secured(client, server, *tokens)
        with found.attached(found.boss) as boss:
            for statement in TABLES:
                boss.need(statement)
        yield found


def test_member_sees_and_changes_what_is_granted(secured: Secured) -> None:
    secured.grant("lake.sales.people", "read")
    with secured.attached(secured.ada) as ada:
        assert ada.rows("SELECT * FROM db.sales.people") == [["1", "Ada"]]
        shown = "SELECT schema, name FROM (SHOW ALL TABLES) WHERE database = 'db' AND schema <> 'skiway'"
        assert ada.rows(shown) == [["sales", "people"]]
        assert ada.rows("SELECT table_name FROM db.skiway.tables") == [["people"]]
        assert "does not exist" in str(ada.run("SELECT * FROM db.hr.salaries"))
        for statement in ("INSERT INTO db.sales.people VALUES (2, 'x')", "DROP TABLE db.sales.people"):
            assert "table.write" in str(ada.run(statement))
    secured.grant("lake.sales", "write")
    with secured.attached(secured.ada) as ada:
        ada.need("INSERT INTO db.sales.people VALUES (2, 'Grace')")
        ada.need("UPDATE db.sales.people SET name = 'G' WHERE id = 2")
        ada.need("CREATE TABLE db.sales.new AS SELECT 5 AS x")
        assert ada.rows("SELECT name FROM db.sales.people ORDER BY id") == [["Ada"], ["G"]]
        assert "namespace.write" in str(ada.run("CREATE SCHEMA db.mine"))


def test_member_without_grants_sees_nothing(secured: Secured) -> None:
    with pytest.raises(AssertionError, match=r"catalog\.read"), secured.attached(secured.ada) as ada:
        ada.need("SELECT * FROM db.sales.people")


def test_member_sees_what_policies_leave(secured: Secured) -> None:
    with secured.attached(secured.boss) as boss:
        boss.need("CREATE TABLE db.sales.staff AS SELECT i AS id, 'secret ' || i AS name FROM range(10) t(i)")
    secured.grant("lake.sales", "write")
    for words in (
        ("even", "--filter", "id % 2 = 0", "--to", "role:member"),
        ("no names", "--mask", "null", "--column", "name", "--to", "everyone", "--except", "role:administrator"),
    ):
        location = f"127.0.0.1:{secured.server.port}"
        skiway(
            "policies", "create", *words, "--on", "lake.sales.staff", SKIWAY_SERVER=location, SKIWAY_TOKEN=secured.boss
        )
    with secured.attached(secured.ada) as ada:
        assert ada.rows("SELECT count(*), count(name), max(id) FROM db.sales.staff") == [["5", "0", "8"]]
        assert ada.rows("FROM db.skiway.query('SELECT count(*) n, count(name) m FROM sales.staff')") == [["5", "0"]]
        assert ada.rows("SELECT id FROM db.sales.staff WHERE id IN (3, 4)") == [["4"]]
        for statement in ("UPDATE db.sales.staff SET name = 'x'", "DELETE FROM db.sales.staff WHERE id = 1"):
            assert "policies even, no names restrict what you see" in str(ada.run(statement))
        ada.need("INSERT INTO db.sales.staff VALUES (100, 'new')")
        assert ada.rows("SELECT max(id), max(name) FROM db.sales.staff WHERE id > 10") == [["100", None]]
    with secured.attached(secured.boss) as boss:
        assert boss.rows("SELECT count(*), count(name) FROM db.sales.staff") == [["11", "11"]]
