"""Plans and their application on a server: idempotent, in a safe order, and repeatable after an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from client.metastore_server import Server, serving_metastore
from setup.example import CREDENTIAL, QUOTED, SECRET, SIGNING, everything, text_of
from skiway.client import Metastore
from skiway.errors import InvalidArgument, PreconditionFailed, Unavailable
from skiway.model import v1
from skiway.setup import InvalidSetup, Plan, apply, checked, export, make_plan, read, read_actual, write

SMALL: dict[str, Any] = {
    "version": 1,
    "catalogs": [{"name": "lake"}],
    "namespaces": [{"name": "lake.sales"}],
}
CONNECTOR = {"name": "c", "kind": "parquet", "uri": "/data", "destination": {"catalog": "lake"}}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_metastore() as found:
        yield found


@pytest.fixture
def lake(server: Server) -> Iterator[Metastore]:
    with Metastore(server.address) as found:
        yield found


def plan(lake: Metastore, declared: Mapping[str, Any], **options: bool) -> Plan:
    return make_plan(checked(read(text_of(dict(declared)), "lake.yaml")), read_actual(lake), **options)


def applied(
    lake: Metastore, declared: Mapping[str, Any], env: Mapping[str, str] | None = None, **options: bool
) -> list[str]:
    """Apply a setup; return what was reported."""
    loaded = checked(read(text_of(dict(declared)), "lake.yaml"))
    sync = options.pop("sync", False)
    reported: list[str] = []
    made = make_plan(loaded, read_actual(lake), **options)
    apply(lake, made, loaded.setup, report=reported.append, sync=sync, environment={**SIGNING, **env} if env else {})
    return reported


def summary(made: Plan) -> list[tuple[str, str, str]]:
    return [(each.action, each.kind, each.name) for each in made.changes]


def test_applying_twice_changes_nothing_the_second_time(lake: Metastore, server: Server, tmp_path: Path) -> None:
    declared = everything(tmp_path)
    assert len(applied(lake, declared, {CREDENTIAL: f"type=bearer,token={SECRET}"})) == len(plan_kinds(declared))
    server.seen.clear()
    assert applied(lake, declared) == []
    assert [
        method for method in server.methods() if method.startswith(("Create", "Update", "Delete", "Add", "Set"))
    ] == []
    assert SECRET not in write(export(lake))


def plan_kinds(declared: Mapping[str, Any]) -> list[str]:
    """One entry for each object of a setup, without those that the test server already has and that are equal."""
    return [
        section
        for section, items in declared.items()
        if section != "version"
        for _ in (items if isinstance(items, list) else [items])
    ]


def test_plan_shows_what_differs(lake: Metastore) -> None:
    declared = {**SMALL, "catalogs": [{"name": "lake", "description": "new", "properties": {"a": "1"}}]}
    (change,) = plan(lake, declared).changes
    assert (change.action, change.line) == ("update", 3)
    assert [(each.field, each.before, each.after) for each in change.fields] == [
        ("description", None, "new"),
        ("properties", None, {"a": "1"}),
    ]
    applied(lake, declared)
    (change,) = plan(lake, {**SMALL, "catalogs": [{"name": "lake", "properties": {"a": "2", "b": "3"}}]}).changes
    assert [(each.field, each.before, each.after) for each in change.fields] == [
        ("description", "new", None),
        ("properties.a", "1", "2"),
        ("properties.b", None, "3"),
    ]


STEPS = (
    *("CreateCatalog", "CreateNamespace", "CreateTable", "CreateConnector", "UpdateConnector"),
    *("SetColumnTags", "CreatePolicy", "CreateView", "AddGrant"),
)
CHANGES: list[tuple[str, int, dict[str, Any]]] = [
    ("account", 0, {"description": "other", "tags": {}}),
    ("catalogs", 0, {"description": "", "properties": {"scan.mode": "server"}}),
    ("namespaces", 0, {"description": "", "properties": {}, "policy_ref": ""}),
    ("connectors", 0, {"uri": "/other", "kind": "delta", "properties": {"delta.source": "filesystem"}}),
    ("connectors", 0, {"destination": {"catalog": "lake", "table": "x"}, "source": {"table": "y"}, "paused": True}),
    ("connectors", 0, {"schedule": {"enabled": True, "every": "5m", "snapshots": "all"}, "description": ""}),
    ("connectors", 2, {"copy": {"mode": "replace", "read_partitions": 2, "tables": {"a": {"sort_by": "id"}}}}),
    ("connectors", 1, {"paused": False, "auth": {"scheme": "none", "credentials": {"env": CREDENTIAL}}}),
    ("views", 0, {"sql": {"duckdb": "SELECT 1"}, "rights": "invoker", "description": "", "properties": {}}),
    ("views", 0, {"reads": ["lake.a.b"], "columns": [{"name": "x", "type": "INTEGER"}], "search_path": ["a", "b"]}),
    ("rules", 0, {"severity": "error", "description": "", "estimates_only": True, "row_count": {"max": 9}}),
    ("rules", 1, {"null_share": {"column": "id", "max": 0.0}}),
    ("rules", 6, {"allowed_values": {"column": "email", "values": ["b@x"]}}),
    ("rules", 8, {"schema": {"columns": {"id": "long", "email": "int", "price": "decimal(10,2)"}}}),
    ("rules", 5, {"table": f"{QUOTED}.{QUOTED}.{QUOTED}"}),
    ("webhooks", 0, {"url": "http://127.0.0.1:9/", "events": ["*"], "description": ""}),
    (
        "pipelines",
        0,
        {"files": {"pipeline.yml": "name: derived\ncatalog: lake\nnamespace: sales\n", "other.sql": "SELECT 1 AS x"}},
    ),
    ("webhooks", 0, {"paused": False}),
    ("tags", 0, {"columns": {"id": ["key"], "email": ["pii"]}}),
    ("policies", 0, {"to": ["role:x"], "exceptions": [], "tags": ["pii", "b"], "description": "d"}),
    ("policies", 0, {"mask": {"kind": "hash", "columns": ["email"]}}),
    ("policies", 1, {"row_filter": "id = 1", "on": [{"namespace": "lake.sales"}]}),
    ("grants", 2, {"privilege": "manage"}),
]


@pytest.mark.timeout(180)
def test_every_change_arrives(lake: Metastore, tmp_path: Path) -> None:
    declared = everything(tmp_path)
    applied(lake, declared, {CREDENTIAL: f"type=bearer,token={SECRET}"})
    for section, number, change in CHANGES:
        (declared[section] if section == "account" else declared[section][number]).update(change)
        (made,) = plan(lake, declared).changes
        assert (made.action, made.changed - {"secret"}) == ("update", change.keys())
        moves = {"auth", "url"} & change.keys()
        secrets = {CREDENTIAL: f"type=bearer,token={SECRET}", "X": "another secret of many bytes"} if moves else {}
        (reported,) = applied(lake, declared, secrets)  # without the environment: credentials are not sent again
        assert reported == f"changed {made.kind} {made.name}"
        assert not plan(lake, declared), change
        assert lake.connectors.get(declared["connectors"][1]["name"]).message.auth.secret_id


def test_secret_of_a_webhook_is_sent_again_only_on_request(lake: Metastore, tmp_path: Path) -> None:
    declared = {"version": 1, "webhooks": everything(tmp_path)["webhooks"][:1]}
    applied(lake, declared, {"X": "y"})
    assert not plan(lake, declared)
    (again,) = plan(lake, declared, send_credentials=True).changes
    assert [each.field for each in again.fields] == ["secret"]
    assert "canary" not in str(again)
    assert applied(lake, declared, {"X": "y"}, send_credentials=True) == ["changed webhook alerts"]
    del declared["webhooks"][0]["secret"]
    lake.webhooks.delete("alerts")
    with pytest.raises(InvalidArgument, match="a new webhook needs a secret"):
        applied(lake, declared)


def test_section_that_is_left_out_is_not_compared(lake: Metastore, tmp_path: Path) -> None:
    applied(lake, everything(tmp_path), {CREDENTIAL: "type=bearer,token=x"})
    assert plan(lake, {"version": 1}, delete=True) == Plan(())


def test_nothing_is_deleted_without_the_option(lake: Metastore, tmp_path: Path) -> None:
    declared = everything(tmp_path)
    applied(lake, declared, {CREDENTIAL: "type=bearer,token=x"})
    before = write(export(lake))
    empty = {section: [] for section in declared if section not in ("version", "account")}
    made = plan(lake, {"version": 1, **empty})
    assert not made
    assert len(made.kept) == sum(
        len(items) for section, items in declared.items() if section in empty and section != "tables"
    )
    assert applied(lake, {"version": 1, **empty}) == []
    assert write(export(lake)) == before


def test_delete_deletes_all_but_tables_and_what_contains_them(lake: Metastore, tmp_path: Path) -> None:
    declared = everything(tmp_path)
    applied(lake, declared, {CREDENTIAL: "type=bearer,token=x"})
    empty = {section: [] for section in declared if section not in ("version", "account")}
    guarded = declared["catalogs"][1]["name"]
    lake.catalogs.update((guarded,), protected=False)
    reported = applied(lake, {"version": 1, **empty}, delete=True)
    assert reported[0].startswith("deleted grant")
    left = export(lake)
    assert len(left.tables or ()) == 3
    assert {each.name for each in left.catalogs or ()} == {"lake", guarded}
    assert {each.name for each in left.namespaces or ()} == {"lake.sales", declared["namespaces"][2]["name"]}
    assert not any(
        (left.connectors, left.views, left.tags, left.policies, left.rules, left.pipelines, left.webhooks, left.grants)
    )


def test_what_protects_comes_before_what_exposes(lake: Metastore, tmp_path: Path) -> None:
    made = plan(lake, everything(tmp_path))
    kinds = [each.kind for each in made.changes if each.name != everything(tmp_path)["policies"][2]["name"]]
    assert list(dict.fromkeys(kinds)) == [
        "account", "catalog", "namespace", "table", "connector", "tags", "policy", "view", "rule", "pipeline", "webhook", "grant",
    ]  # fmt: skip
    assert kinds == sorted(kinds, key=list(dict.fromkeys(kinds)).index)


def test_error_keeps_what_is_done_and_the_rest_can_be_applied(lake: Metastore, server: Server, tmp_path: Path) -> None:
    env = {CREDENTIAL: f"type=bearer,token={SECRET}"}
    declared = everything(tmp_path)
    total = len(plan(lake, declared).changes)
    server.fail("CreateConnector", PreconditionFailed("planted"))
    with pytest.raises(
        PreconditionFailed, match=r"cannot create connector .* \(line \d+\): planted; \d+ changes are left"
    ) as error:
        applied(lake, declared, env)
    assert SECRET not in str(error.value)
    left = len(plan(lake, declared).changes)
    assert 0 < left < total
    assert len(applied(lake, declared, env)) == left
    assert not plan(lake, declared)


@pytest.mark.full
def test_lost_connection_in_the_middle_can_be_repeated(lake: Metastore, server: Server, tmp_path: Path) -> None:
    """Each method fails once after it took effect; every repetition makes progress until nothing is left."""
    env = {CREDENTIAL: "type=bearer,token=x"}
    declared = everything(tmp_path)
    for method in STEPS:
        failed = []

        def act(truly: Any, realm: Any, request: Any, failed: list[int] = failed) -> Any:
            answer = truly(realm, request)
            if not failed:
                failed.append(1)
                raise PreconditionFailed("planted after the effect")
            return answer

        server.disturb(method, act)
    for _ in STEPS:
        with pytest.raises(PreconditionFailed, match="planted after the effect"):
            applied(lake, declared, env)
    applied(lake, declared, env)
    assert not plan(lake, declared)


@pytest.mark.parametrize(
    ("section", "item", "line", "message"),
    [
        ("namespaces", {"name": "nowhere.x"}, 6, "catalog nowhere does not exist: declare it in the file, or create it"),
        ("tables", {"name": "lake.no.x", "columns": []}, 7, "namespace lake.no does not exist"),
        ("views", {"name": "lake.no.x", "sql": {"duckdb": "SELECT 1"}}, 7, "namespace lake.no does not exist"),
        ("connectors", {**CONNECTOR, "destination": {"catalog": "no"}}, 11, "catalog no does not exist"),
        ("tags", {"table": "lake.sales.no", "columns": {}}, 7, "table lake.sales.no does not exist: create it, or check"),
        ("policies", {"name": "p", "to": [], "on": [{"view": "lake.sales.no"}], "row_filter": "x"}, 9, "view lake.sales.no does not exist"),
        ("grants", {"to": "user:a", "privilege": "read", "on": {"catalog": "no"}}, 9, "catalog no does not exist"),
    ],
)  # fmt: skip
def test_reference_to_a_missing_object_is_reported_with_its_line(
    lake: Metastore, section: str, item: dict[str, Any], line: int, message: str
) -> None:
    declared = {**SMALL, section: [*SMALL.get(section, []), item]}
    with pytest.raises(InvalidSetup) as error:
        plan(lake, declared)
    assert str(error.value).startswith(f"lake.yaml, line {line}: {message}")


def test_tables_are_not_altered(lake: Metastore) -> None:
    table: dict[str, Any] = {"name": "lake.sales.t", "columns": [{"name": "a", "type": "int"}]}
    applied(lake, {**SMALL, "tables": [table]})
    changed = {**table, "columns": [{"name": "a", "type": "long"}]}
    with pytest.raises(
        InvalidSetup, match=r"table lake.sales.t exists with another columns: setup does not alter tables"
    ):
        plan(lake, {**SMALL, "tables": [changed]})


def test_change_on_an_unmirrored_table_waits_and_nothing_is_exposed_before(lake: Metastore) -> None:
    declared = {
        **SMALL,
        "connectors": [CONNECTOR],
        "views": [{"name": "lake.sales.v", "sql": {"duckdb": "SELECT 1"}}],
        "policies": [{"name": "p", "to": ["everyone"], "on": [{"table": "lake.raw.t"}], "mask": {"kind": "null", "columns": ["x"]}}],
        "grants": [{"to": "user:ada", "privilege": "read", "on": {"catalog": "lake"}}],
    }  # fmt: skip
    assert [each.waits_for for each in plan(lake, declared).changes if each.kind == "policy"] == [
        ("table", "lake.raw.t")
    ]
    with pytest.raises(PreconditionFailed, match=r"3 changes wait for table lake.raw.t, .* use --sync"):
        applied(lake, declared)
    assert summary(plan(lake, declared)) == [
        ("create", "policy", "p"),
        ("create", "view", "lake.sales.v"),
        ("create", "grant", "user:ada on catalog lake"),
    ]
    lake.namespaces.create("lake.raw")
    lake.tables.create("lake.raw.t", schema={"type": "struct", "fields": []})
    assert len(applied(lake, declared)) == 3


# -- credentials -------------------------------------------------------------------------------------------------------


def with_credentials(credentials: dict[str, Any] | None) -> dict[str, Any]:
    auth = {"scheme": "oauth2"} | ({} if credentials is None else {"credentials": credentials})
    return {**SMALL, "connectors": [{**CONNECTOR, "auth": auth}]}


def sent(server: Server) -> list[v1.ConnectorCredentials]:
    """Record the credentials that arrive at the server."""
    found: list[v1.ConnectorCredentials] = []

    def act(truly: Any, realm: Any, request: Any) -> Any:
        if request.spec.auth.HasField("credentials"):
            found.append(request.spec.auth.credentials)
        return truly(realm, request)

    server.disturb("CreateConnector", act)
    server.disturb("UpdateConnector", act)
    return found


@pytest.mark.parametrize(
    "credentials",
    [
        {"env": "WHOLE"},
        {"file": "FOLDER/whole"},
        {"type": "bearer", "token": {"env": "TOKEN"}},
        {"type": "bearer", "token": {"file": "FOLDER/token"}},
    ],
)
def test_credentials_come_from_variables_and_files(
    lake: Metastore, server: Server, tmp_path: Path, credentials: dict[str, Any]
) -> None:
    (tmp_path / "whole").write_text(f"type=bearer,token={SECRET}\n")
    (tmp_path / "token").write_text(f"{SECRET}\n")
    declared = with_credentials(eval(repr(credentials).replace("FOLDER", str(tmp_path))))
    found = sent(server)
    applied(lake, declared, {"WHOLE": f"type=bearer,token={SECRET}", "TOKEN": SECRET})
    assert [each.bearer.token for each in found] == [SECRET]
    made = plan(lake, declared, send_credentials=True)
    assert summary(made) == [("update", "connector", "c")]
    assert SECRET not in repr(made)
    assert SECRET not in write(export(lake))


def test_credentials_of_other_types(lake: Metastore, server: Server) -> None:
    found = sent(server)
    aws = {"type": "aws", "access_key_id": {"env": "A"}, "secret_access_key": {"env": "B"}}
    applied(lake, with_credentials(aws), {"A": "key", "B": SECRET})
    client = {"type": "client", "endpoint": "https://x/y", "client_id": "me", "client_secret": {"env": "B"}}
    applied(lake, with_credentials(client), {"B": SECRET}, send_credentials=True)
    assert found[0].aws.secret_access_key == found[1].client.client_secret == SECRET
    assert found[1].client.client_id == "me"


def test_missing_secret_stops_before_the_first_change(lake: Metastore) -> None:
    declared = with_credentials({"env": "NOWHERE"})
    declared["catalogs"] = [{"name": "lake"}, {"name": "new"}]
    with pytest.raises(InvalidArgument, match=r"connector c \(line \d+\): .* refers to \$NOWHERE, which is not set"):
        applied(lake, declared)
    assert lake.catalogs.find("new") is None


def test_new_address_needs_the_credentials_again(lake: Metastore, server: Server) -> None:
    declared = with_credentials({"env": "A"})
    applied(lake, declared, {"A": f"type=bearer,token={SECRET}"})
    declared["connectors"][0]["uri"] = "/other"
    (change,) = plan(lake, declared).changes
    assert [each.field for each in change.fields] == ["uri", "auth.credentials"]
    with pytest.raises(InvalidArgument, match=r"refers to \$A, which is not set"):
        applied(lake, declared)
    found = sent(server)
    applied(lake, declared, {"A": "type=bearer,token=new"})
    assert [each.bearer.token for each in found] == ["new"]

    del declared["connectors"][0]["auth"]["credentials"]
    assert not plan(lake, declared)
    declared["connectors"][0]["uri"] = "/third"
    with pytest.raises(InvalidSetup, match=r"connector c gets another uri, .*: declare auth\.credentials, or remove"):
        plan(lake, declared)
    applied(lake, declared, delete=True)
    assert not lake.connectors.get("c").message.auth.secret_id


def test_new_address_of_a_webhook_needs_its_secret_again(lake: Metastore, tmp_path: Path) -> None:
    declared = {"version": 1, "webhooks": everything(tmp_path)["webhooks"][:1]}
    applied(lake, declared, {"X": "y"})
    declared["webhooks"][0]["url"] = "http://127.0.0.1:9/"
    (change,) = plan(lake, declared).changes
    assert [each.field for each in change.fields] == ["url", "secret"]
    del declared["webhooks"][0]["secret"]
    with pytest.raises(InvalidSetup, match=r"webhook alerts gets another url, .*: declare its secret"):
        plan(lake, declared)


def test_credentials_are_removed_only_with_delete(lake: Metastore) -> None:
    applied(lake, with_credentials({"env": "A"}), {"A": "type=bearer,token=x"})
    without = with_credentials(None)
    assert not plan(lake, without)
    applied(lake, without, delete=True)
    assert not lake.connectors.get("c").message.auth.secret_id


def test_unreachable_server_is_reported(server: Server) -> None:
    with Metastore("127.0.0.1:1", timeout_s=0.5) as lake, pytest.raises(Unavailable):
        plan(lake, SMALL)
