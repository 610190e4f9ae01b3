"""`skiway accounts` and `skiway tokens`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.conftest import Run
from runtime.servers import Server
from skiway.cli.lake.jobs import connector_names
from skiway.cli.options import load_settings
from skiway.client import Metastore
from skiway.errors import LimitExceeded, PermissionDenied, Unauthorized
from skiway.metastore.platform import AccountDirectory, TokenUses, token_uses
from skiway.runtime.authentication import authenticator
from skiway.runtime.stores import stores_of


def test_account_is_created_changed_listed_and_deleted(run: Run) -> None:
    created = run("accounts", "create", "Acme", "--id", "acme", "--tag", "plan=free", "-o", "json").json
    assert (created["id"], created["name"], created["tags"]) == ("acme", "Acme", {"plan": "free"})
    changed = run("accounts", "update", "Acme", "--name", "Acme Inc.", "--description", "anvils", "-o", "json").json
    assert (changed["name"], changed["description"], changed["tags"]) == ("Acme Inc.", "anvils", {"plan": "free"})
    assert run("accounts", "get", "Acme Inc.", "-o", "json").json["id"] == "acme"
    listed = {each["id"] for each in run("accounts", "list", "-o", "json").json}
    assert listed == {"acme", "default"}
    run("accounts", "update", "acme", "--tag", "plan=paid")
    found = run("accounts", "get", "acme", "-o", "json").json
    assert (found["name"], found["description"], found["tags"]) == ("Acme Inc.", "anvils", {"plan": "paid"})
    assert run("accounts", "delete", "acme").out == "deleted account acme\n"
    assert {each["id"] for each in run("accounts", "list", "-o", "json").json} == {"default"}


def call_often(lake: Metastore, times: int) -> None:
    for _ in range(times):
        list(lake.catalogs())


def test_quotas_of_an_account_are_enforced(run: Run, lake: Server) -> None:
    made = run("accounts", "create", "Small", "--id", "small", "--quota", "account.per_second=1", "-o", "json").json
    assert made["quotas"] == {"account.per_second": 1.0}
    with (
        Metastore(lake.address, account="small") as small,
        pytest.raises(LimitExceeded, match=r"1 calls per second.*the account can have a lower quota") as refused,
    ):
        call_often(small, 50)
    assert refused.value.params["quota"] == "quotas.account.per_second"
    with Metastore(lake.address) as other:
        call_often(other, 5)
    changed = run("accounts", "update", "small", "--quota", "caller.scans=3", "--quota", "caller.calls=0", "-o", "json")
    assert changed.json["quotas"] == {"caller.scans": 3.0}
    assert run("accounts", "update", "small", "--quota", "caller.scans=0", "-o", "json").json["quotas"] == {}
    refusals = {
        "caller.scan=3": "use caller.calls, caller.scans",
        "caller.scans=0.5": "use a whole number from 1 on",
        "account.per_second=nan": "use a number from 1 on",
        "caller.scans=many": "is not a number",
    }
    for given, message in refusals.items():
        failed = run("accounts", "update", "small", "--quota", given)
        assert failed.code in (1, 2)
        assert message in " ".join(failed.err.split())
    assert run("accounts", "delete", "small").code == 0


def test_account_is_created_with_a_description_and_a_random_id(run: Run) -> None:
    created = run("accounts", "create", "Globex", "--description", "doomsday", "-o", "json").json
    found = run("accounts", "get", created["id"], "-o", "json").json
    assert (found["name"], found["description"]) == ("Globex", "doomsday")
    assert run("accounts", "delete", "Globex").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "moon"], "moon"),
        (["update", "default"], "nothing to change"),
        (["delete", "default"], "catalog"),
        (["create", "x", "--id", "a/b"], "account_id"),
    ],
)
def test_mistakes_are_explained(run: Run, arguments: list[str], message: str) -> None:
    done = run("accounts", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err


def test_token_is_created_listed_and_revoked(run: Run, tmp_path: Path) -> None:
    home = ("--home", tmp_path / "home")
    for ttl in (["--ttl", "30d"], []):
        assert run("tokens", "create", "etl", "--account", "default", "--role", "default", *ttl, *home).code == 0
    assert run("tokens", "create", "ops", "--account", "", "--role", "platform-monitor", *home).code == 0
    listed = run("tokens", "list", *home, "-o", "json").json
    assert [(each["name"], each["account"], each["state"], each["last_used_at"]) for each in listed] == [
        ("etl", "default", "valid", None),
        ("etl", "default", "valid", None),
        ("ops", "", "valid", None),
    ]
    assert [each["expires_at"] is None for each in listed] == [False, True, True]
    assert listed[0]["id"] in run("tokens", "delete", "etl", *home).err
    assert run("tokens", "delete", listed[0]["id"], *home).out == f"revoked token {listed[0]['id']} of etl\n"
    assert run("tokens", "delete", "etl", *home).code == 0
    assert [each["name"] for each in run("tokens", "list", *home, "-o", "json").json] == ["ops"]


def test_all_tokens_of_a_name_are_revoked_on_request(run: Run, tmp_path: Path) -> None:
    for name in ("etl", "etl", "ops"):
        run("tokens", "create", name, "--account", "default", "--home", tmp_path)
    assert run("tokens", "delete", "etl", "--all", "--home", tmp_path).out.count("revoked token") == 2
    assert [each["name"] for each in run("tokens", "list", "--home", tmp_path, "-o", "json").json] == ["ops"]


def test_token_works_until_it_is_revoked_and_its_last_use_is_listed(run: Run, tmp_path: Path) -> None:
    settings = load_settings(tmp_path, None, ["auth.mode=token"])
    token = run(
        "tokens", "create", "ada", "--account", "default", "--role", "Administrator", "--home", tmp_path
    ).out.strip()
    with stores_of(settings, tmp_path) as stores:
        tokens = authenticator(settings, AccountDirectory(stores), note_use=TokenUses(stores).note)
        found = tokens.authenticate({"authorization": f"Bearer {token}"})
        assert (found.subject, found.account_id, found.roles) == ("ada", "default", {"administrator"})
        (listed,) = run("tokens", "list", "--home", tmp_path, "-o", "json").json
        assert listed["roles"] == ["Administrator"]
        assert datetime.fromisoformat(listed["last_used_at"]) > datetime.now(UTC) - timedelta(minutes=5)
        assert run("tokens", "delete", "ada", "--home", tmp_path).code == 0
        with pytest.raises(Unauthorized):
            tokens.authenticate({"authorization": f"Bearer {token}"})
        assert token_uses(stores) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--account", "moon"], "account 'moon' does not exist"),
        (["--account", "default", "--role", "king"], "role 'king' does not exist: choose from administrator"),
        (["--account", ""], "a token without an account is only for the role platform-admin"),
        (["--account", "default", "--role", "platform-admin"], "a role of the platform"),
        (["--account", "", "--role", "administrator"], "a role of an account"),
    ],
)
def test_token_that_would_be_rejected_is_not_created(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run("tokens", "create", "ada", *arguments, "--home", tmp_path / "home")
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert not (tmp_path / "home" / "tokens.toml").exists()


def test_expired_tokens_and_those_of_deleted_accounts_are_marked(run: Run, tmp_path: Path) -> None:
    entries = {"old": ("default", "2020-01-01T00:00:00Z"), "lost": ("moon", "2099-01-01T00:00:00Z")}
    text = "".join(
        f'[[tokens]]\nname = "{name}"\naccount = "{account}"\nexpires_at = {until}\nsha256 = "{name[0].encode().hex() * 32}"\n'
        for name, (account, until) in entries.items()
    )
    (tmp_path / "tokens.toml").write_text(text)
    run("tokens", "create", "ada", "--account", "default", "--home", tmp_path)
    listed = json.loads(run("tokens", "list", "--home", tmp_path, "-o", "json").out)
    assert {each["name"]: each["state"] for each in listed} == {"old": "expired", "lost": "no account", "ada": "valid"}


def test_grant_is_added_listed_and_revoked(run: Run) -> None:
    for name, privilege in (("lake", "manage"), ("lake.raw", "write"), ("lake.raw.orders", "read")):
        added = run("grants", "create", name, "--to", "user:ada", "--privilege", privilege, "-o", "json").json
        assert (added["object"], added["grantee"], added["privilege"]) == (name, "user:ada", privilege)
    assert run("grants", "create", "lake.raw.people", "--to", "role:Analyst").out == (
        "role:analyst may read table lake.raw.people\n"
    )
    listed = run("grants", "list", "--to", "user:ada", "-o", "json").json
    assert {(each["object"], each["kind"], each["privilege"]) for each in listed} == {
        ("lake", "catalog", "manage"),
        ("lake.raw", "namespace", "write"),
        ("lake.raw.orders", "table", "read"),
    }
    assert [each["grantee"] for each in run("grants", "list", "lake.raw.people", "-o", "json").json] == ["role:analyst"]
    for name, grantee in (
        *((name, "user:ada") for name in ("lake", "lake.raw", "lake.raw.orders")),
        ("lake.raw.people", "role:analyst"),
    ):
        assert run("grants", "delete", name, "--to", grantee).out == f"revoked the grant on {name} to {grantee}\n"
    assert run("grants", "list", "-o", "json").json == []
    assert run("grants", "delete", "lake", "--to", "user:ada").out == "user:ada has no grant on lake itself\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lake.raw.moon", "--to", "user:ada"], "there is no namespace, table or view 'lake.raw.moon'"),
        (["moon", "--to", "user:ada"], "there is no catalog moon"),
        (["lake.raw", "--to", "ada"], "user:<subject> or role:<name>"),
        (["lake.raw", "--kind", "table", "--to", "user:ada"], "does not name a table"),
    ],
)
def test_grant_that_cannot_work_is_explained(run: Run, arguments: list[str], message: str) -> None:
    done = run("grants", "create", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err


def test_tables_are_shown_to_callers_who_may_not_see_connectors() -> None:
    class Lake:
        def connectors(self) -> object:
            raise PermissionDenied("this requires the permission connector.manage")

    assert connector_names(Lake()) == {}  # type: ignore[arg-type]
