"""Commits to several tables (`transactions/commit`), some of which may be new: all of them, or none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError

from authorization.callers import add_policies
from metastore.mirrors import connector
from rest.rest_server import RestServer, opened
from skiway.errors import AlreadyExists, Contention
from skiway.formats import OpenedTable
from skiway.metastore import Realm
from skiway.metastore.maintenance import Checker
from skiway.metastore.managed import commits
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.storage import Stores

ROWS = pa.table({"id": [1, 2], "name": ["Ada", "Grace"]})
COMMIT = "/v1/lake/transactions/commit"


@pytest.fixture
def server(stores: Stores, tmp_path: Path) -> Iterator[RestServer]:
    (tmp_path / "approved").mkdir()
    with opened(stores, tmp_path, approved=tmp_path / "approved") as server:
        catalog = server.pyiceberg()
        catalog.create_namespace("ns")
        for name in ("a", "b"):
            catalog.create_table(f"ns.{name}", ROWS.schema, properties={"color": "blue"})
        yield server


def change(name: str, *, requirements: Any = (), **updates: str) -> dict[str, Any]:
    return {
        "identifier": {"namespace": ["ns"], "name": name},
        "requirements": list(requirements),
        "updates": [{"action": "set-properties", "updates": updates}],
    }


def creation(server: RestServer, name: str, *, rows: bool = True, **options: Any) -> dict[str, Any]:
    """A staged table with rows, which are written, as a change of a transaction."""
    staged = server.pyiceberg().create_table_transaction(f"ns.{name}", ROWS.schema, **options)
    if rows:
        staged.append(ROWS)
    updates = [json.loads(each.model_dump_json(by_alias=True, exclude_none=True)) for each in staged._updates]
    return {
        "identifier": {"namespace": ["ns"], "name": name},
        "requirements": [{"type": "assert-create"}],
        "updates": updates,
    }


def commit(server: RestServer, *changes: dict[str, Any], **headers: str) -> Any:
    return server.call("POST", COMMIT, {"table-changes": changes}, **headers)


def problem(answer: Any) -> tuple[int, str, str]:
    found = answer.json()["error"]
    return answer.status_code, found["type"], found["message"]


def color(catalog: Catalog, name: str) -> str:
    return catalog.load_table(f"ns.{name}").properties["color"]


def claims(stores: Stores) -> set[str]:
    """The folders that are claimed for tables, in the warehouse and elsewhere."""
    return {each.key for prefix in ("/folders/", keys.PLACES) for each in stores.pointers.scan(prefix)}


def names(server: RestServer) -> set[str]:
    return {name for *_, name in server.pyiceberg().list_tables("ns")}


def test_transaction_changes_all_tables_or_none(server: RestServer, tmp_path: Path) -> None:
    catalog = server.pyiceberg()
    assert commit(server, change("a", color="x"), change("b", color="y")).status_code == 204
    assert (color(catalog, "a"), color(catalog, "b")) == ("x", "y")
    written = set((tmp_path / "warehouse").rglob("*"))
    failing = change("b", color="w", requirements=[{"type": "assert-current-schema-id", "current-schema-id": 9}])
    status, kind, message = problem(commit(server, change("a", color="w"), failing))
    assert (status, kind) == (409, "CommitFailedException")
    assert message.startswith("Requirement failed: current schema changed")
    assert (color(catalog, "a"), color(catalog, "b")) == ("x", "y")
    assert set((tmp_path / "warehouse").rglob("*")) == written


def test_transaction_creates_tables_together_with_their_rows(
    server: RestServer, stores: Stores, tmp_path: Path
) -> None:
    placed = creation(server, "placed", location=f"file://{tmp_path}/approved/placed")
    assert commit(server, change("a", color="x"), creation(server, "new"), placed).status_code == 204
    catalog = server.pyiceberg()
    assert color(catalog, "a") == "x"
    for name in ("new", "placed"):
        table = catalog.load_table(f"ns.{name}")
        assert table.scan().to_arrow().num_rows == 2
        table.append(ROWS)
        assert catalog.load_table(f"ns.{name}").scan().to_arrow().num_rows == 4
    assert not list(Checker(stores, server.warehouse).defects())


def test_transaction_of_new_tables_only(server: RestServer) -> None:
    assert commit(server, creation(server, "x"), creation(server, "y")).status_code == 204
    assert names(server) == {"a", "b", "x", "y"}


def test_no_table_is_created_if_a_requirement_of_another_fails(server: RestServer) -> None:
    failing = change("a", color="w", requirements=[{"type": "assert-current-schema-id", "current-schema-id": 9}])
    new = creation(server, "new")
    assert problem(commit(server, new, failing))[:2] == (409, "CommitFailedException")
    assert names(server) == {"a", "b"}
    assert commit(server, new, change("a", color="x")).status_code == 204, "it can be repeated"
    assert server.pyiceberg().load_table("ns.new").scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("taken", ["table", "view"])
def test_nothing_changes_if_the_name_of_a_new_table_is_taken(server: RestServer, taken: str) -> None:
    new, other = creation(server, "New"), creation(server, "other")
    if taken == "table":
        server.pyiceberg().create_table("ns.new", ROWS.schema)
    else:
        server.factory.view("new")
    status, kind, message = problem(commit(server, other, change("a", color="w"), new))
    assert (status, kind) == (409, "AlreadyExistsException")
    assert "ns.New" in message
    assert color(server.pyiceberg(), "a") == "blue"
    assert "other" not in names(server)


def test_of_two_transactions_that_create_a_table_one_wins(server: RestServer) -> None:
    wanted = [[creation(server, "new"), change(name, color="won")] for name in ("a", "b")]
    start, statuses = threading.Barrier(2), []

    def run(changes: list[dict[str, Any]]) -> None:
        start.wait()
        statuses.append(commit(server, *changes).status_code)

    threads = [threading.Thread(target=run, args=(changes,)) for changes in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [204, 409]
    catalog = server.pyiceberg()
    assert sorted((color(catalog, "a"), color(catalog, "b"))) == ["blue", "won"]


def test_repeated_transaction_with_a_key_is_executed_once(server: RestServer) -> None:
    new = creation(server, "new")
    answers = [commit(server, new, idempotency_key="k1").status_code for _ in range(2)]
    assert answers == [204, 204]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ([], 400),
        ([change("a", color="x"), change("a", color="y")], 400),
        ([change("a", color="x"), change("none", color="y")], 404),
        ([{**change("a", color="x"), "identifier": None}], 400),
        ([change("a", color="x"), change("new", color="x", requirements=[{"type": "assert-create"}])], 400),
    ],
)
def test_transactions_that_cannot_be_committed(server: RestServer, changes: list[Any], status: int) -> None:
    assert commit(server, *changes).status_code == status
    assert color(server.pyiceberg(), "a") == "blue"
    assert names(server) == {"a", "b"}


def test_uuid_of_a_table_cannot_change(server: RestServer) -> None:
    other = {**change("b"), "updates": [{"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}]}
    status, _, message = problem(commit(server, change("a", color="w"), other))
    assert (status, "uuid cannot change" in message) == (400, True)
    assert color(server.pyiceberg(), "a") == "blue"


def test_table_cannot_be_created_twice_or_in_a_missing_namespace(server: RestServer) -> None:
    assert "occurs twice" in problem(commit(server, creation(server, "new"), creation(server, "NEW")))[2]
    elsewhere = {**creation(server, "new"), "identifier": {"namespace": ["gone"], "name": "new"}}
    assert problem(commit(server, elsewhere))[:2] == (404, "NoSuchNamespaceException")
    assert names(server) == {"a", "b"}


def test_table_cannot_be_created_with_files_of_another_table(server: RestServer) -> None:
    new = creation(server, "new")
    stolen = server.pyiceberg().load_table("ns.a").location()
    for update in new["updates"]:
        if update["action"] == "set-location":
            update["location"] = stolen
    assert commit(server, new, change("b", color="w")).status_code in (400, 409)
    assert (names(server), color(server.pyiceberg(), "b")) == ({"a", "b"}, "blue")


@pytest.mark.parametrize("together", [True, False])
def test_failed_creation_keeps_the_claim_of_another_table(server: RestServer, tmp_path: Path, together: bool) -> None:
    """A caller names the folder of an existing table for a new one. That table keeps its folder."""
    place = f"file://{tmp_path}/approved/placed"
    catalog = server.pyiceberg()
    catalog.create_table("ns.placed", ROWS.schema, location=place).append(ROWS)
    new = creation(server, "new")
    for update in new["updates"]:
        if update["action"] == "set-location":
            update["location"] = place
    new["updates"] = [each for each in new["updates"] if "snapshot" not in each["action"]]
    if together:
        assert commit(server, new, change("b", color="w")).status_code in (400, 409)
    else:
        assert server.call("POST", "/v1/lake/namespaces/ns/tables/new", new).status_code in (400, 409)
    with pytest.raises(TableAlreadyExistsError, match="the folder of another table"):
        catalog.create_table("ns.inside", ROWS.schema, location=f"{place}/inside")
    assert catalog.load_table("ns.placed").scan().to_arrow().num_rows == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Contention("another commit was faster", key="batch.contended"), "too many concurrent commits"),
        (AlreadyExists("another table has this name", key="taken"), "another table has this name"),
    ],
)
def test_failed_transaction_leaves_no_claim(
    server: RestServer, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    before = claims(stores)
    new = creation(server, "new", rows=False, location=f"file://{tmp_path}/approved/new")
    assert len(claims(stores)) == len(before) + 2
    monkeypatch.setattr(commits, "ATTEMPTS", 3)
    monkeypatch.setattr(commits, "publish", fail)
    status, _, message = problem(commit(server, new, change("a", color="w")))
    assert (status, reason in message) == (409, True)
    assert claims(stores) == before
    assert not list((tmp_path / "approved").rglob("*.json"))


def test_failed_transaction_keeps_the_claim_of_a_folder_with_rows(
    server: RestServer, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection deletes the rows, unless the client repeats the transaction before."""
    new = creation(server, "new", location=f"file://{tmp_path}/approved/new")
    before = claims(stores)
    with monkeypatch.context() as others:
        others.setattr(commits, "publish", Mock(side_effect=AlreadyExists("taken", key="taken")))
        assert commit(server, new).status_code == 409
    assert claims(stores) == before
    assert commit(server, new).status_code == 204
    assert server.pyiceberg().load_table("ns.new").scan().to_arrow().num_rows == 2


def test_transaction_requires_access_to_every_table(server: RestServer, stores: Stores) -> None:
    folder = server.pyiceberg().load_table("ns.b").location()
    add_policies(Realm(stores, "a1"), v1.ResourceId(id=folder.rpartition("/")[2], kind=v1.RK_TABLE))
    server.callers.known["restricted"] = replace(server.callers.known["anybody"], subject="restricted")
    wanted = [change("a", color="w"), change("b", color="w"), creation(server, "new")]
    for caller, reason in (("restricted", "restrict"), ("reader", "table.write"), ("stranger", "lake")):
        answer = commit(server, *wanted, authorization=f"Bearer {caller}")
        assert answer.status_code in (403, 404)
        assert reason in answer.text
    catalog = server.pyiceberg()
    assert (color(catalog, "a"), color(catalog, "b"), names(server)) == ("blue", "blue", {"a", "b"})


def test_tables_of_connectors_cannot_be_changed(stores: Stores, tmp_path: Path) -> None:
    def mirrors(realm: Realm, table: v1.Table) -> OpenedTable:
        raise AssertionError("the source is not needed")

    with opened(stores, tmp_path, mirrors=mirrors) as server:
        place = server.factory.namespace("ns")
        partner = connector(server.factory, "partner")
        upstream = v1.UpstreamRef(connector_id=partner.resource_id, uri="file:///x", format=v1.TF_ICEBERG)
        server.factory.table("mirrored", namespace=place, upstream=upstream)
        server.pyiceberg().create_table("ns.a", ROWS.schema, properties={"color": "blue"})
        answer = commit(server, change("a", color="w"), change("mirrored", color="w"))
        assert answer.status_code == 403
        assert "connector partner" in answer.text
        assert color(server.pyiceberg(), "a") == "blue"
