"""The search index of each caller: what it finds, how few calls it takes, and how it stays small."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.servers import started
from skiway.client import Metastore
from skiway.client.metastore.calls import Calls
from skiway.errors import PermissionDenied, PreconditionFailed
from skiway.model import v1
from skiway.presentation import search
from skiway.presentation.search import Entry, Index, Indexes

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "amount", "type": "long", "doc": "in euros"}]}


class Lake:
    """A metastore with some catalogs, of which the caller may read neither the feed nor tags."""

    def __init__(self, *catalogs: str) -> None:
        self._catalogs = catalogs
        self.built = 0
        self.another = Barrier(2)
        self.policies = SimpleNamespace(tagged=self.events)
        self.events = SimpleNamespace(newest=self.events)  # type: ignore[method-assign, assignment]

    def events(self, *_: Any, **__: Any) -> Iterator[Any]:
        raise PermissionDenied("this caller may not read it")

    def catalogs(self) -> list[Any]:
        self.built += 1
        with suppress(BrokenBarrierError):  # gives another request the time to begin, too
            self.another.wait(0.2)
        return [SimpleNamespace(path=(each,), description=f"the catalog {each}") for each in self._catalogs]

    def namespaces(self, catalog: Any, **_: Any) -> list[Any]:
        return []


def test_each_caller_finds_only_its_own_objects() -> None:
    indexes = Indexes()
    lakes: dict[str, Any] = {"ada": Lake("secret"), "eve": Lake("public")}
    for _ in range(2):  # the second time, from the index
        found = {
            token: [each.entry.name for each in indexes.of(token, lake).find("catalog")]
            for token, lake in lakes.items()
        }
        assert found == {"ada": ["secret"], "eve": ["public"]}


def test_requests_at_the_same_time_build_one_index() -> None:
    indexes, lake = Indexes(), Lake("one")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: indexes.of("ada", lake), range(8)))  # type: ignore[arg-type]
    assert {id(each) for each in found} == {id(found[0])}
    assert lake.built == 1


def test_indexes_together_have_a_limited_size() -> None:
    indexes = Indexes(max_entries=5)
    lakes: dict[str, Any] = {name: Lake(*(f"{name}{number}" for number in range(2))) for name in "abc"}
    kept = {name: indexes.of(name, lake) for name, lake in lakes.items()}
    assert indexes.of("c", lakes["c"]) is kept["c"]
    assert indexes.of("b", lakes["b"]) is kept["b"]
    assert indexes.of("a", lakes["a"]) is not kept["a"], "the one that was not used for longest"
    large: Any = Lake(*"abcdefgh")
    assert indexes.of("large", large) is indexes.of("large", large), "the newest one stays, however large it is"


def test_words_are_found_in_names_columns_comments_and_tags() -> None:
    index = Index(tags={"t1": (("iban", "pii"),)})
    index.replace(
        [
            Entry("table", ("lake", "Sales", "orders"), ("Amount", "iban"), "in EUR", id="t1"),
            Entry("table", ("lake", "sales", "amounts"), ("id",), id="t2"),
        ]
    )

    def found(text: str) -> list[tuple[str, str]]:
        return [(each.entry.name, each.where) for each in index.find(text)]

    assert found("amount") == [("amounts", "name"), ("orders", "column Amount")]
    assert found("eur") == [("orders", "comment")]
    assert found("pii") == [("orders", "tag pii of column iban")]
    assert found("pii sales") == [("orders", "tag pii of column iban")]
    assert found("sales id") == [("amounts", "column id")]
    assert found("amount nowhere") == found(" ") == []
    assert [each.entry.name for each in index.find("sales", limit=1)] == ["orders"]


# -- a real server -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    home: Path = tmp_path_factory.mktemp("search") / "home"
    with started(home) as server, Metastore(server.address, timeout_s=60) as found:
        found.catalogs.create("many")
        yield found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all calls."""
    made: list[str] = []
    call = Calls.call

    def counted(self: Calls, request: Any, response: Any) -> Any:
        made.append(request.DESCRIPTOR.name.removesuffix("Request"))
        return call(self, request, response)

    monkeypatch.setattr(Calls, "call", counted)
    return made


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> Indexes:
    """Indexes that look at the feed at every use."""
    monkeypatch.setattr(search, "FRESH_S", -1.0)
    return Indexes()


def add_tables(lake: Metastore, namespace: str, count: int) -> None:
    lake.namespaces.create(f"many.{namespace}")
    for number in range(count):
        source = v1.UpstreamRef(uri=f"/data/{number}", table_display_name=f"t{number}", format=v1.TF_PARQUET)
        name = f"many.{namespace}.t{number}"
        table = lake.tables.create(name, schema=SCHEMA, description="of a test", upstream=source)
        lake.snapshots.create(table, 1, created_at=datetime.now(UTC))
        lake.statistics.put(table, 1, row_count=number, total_size_bytes=10 * number)


def test_number_of_calls_does_not_depend_on_the_number_of_tables(lake: Metastore, calls: list[str]) -> None:
    add_tables(lake, "few", 2)
    calls.clear()
    Indexes().of("ada", lake)
    few = list(calls)
    add_tables(lake, "more", 20)
    calls.clear()
    index = Indexes().of("ada", lake)
    assert len(calls) - len(few) == 2, "one listing of tables and one of views for the new namespace"
    assert not {"GetTable", "GetTableStats"} & set(calls)
    entry = index.entries["table", ("many", "more", "t7")]
    assert (entry.rows, entry.size_bytes, entry.columns, entry.comment) == (7, 70, ("amount",), "of a test in euros")


def test_only_what_has_changed_is_read_again(lake: Metastore, indexes: Indexes, calls: list[str]) -> None:
    add_tables(lake, "changing", 5)
    index = indexes.of("ada", lake)
    calls.clear()
    indexes.of("ada", lake)
    assert "ListTables" not in calls

    lake.tables.update("many.changing.t1", description="quite different")
    lake.tables.delete("many.changing.t2")
    lake.namespaces.create("many.fresh")
    lake.tables.create("many.fresh.first", schema=SCHEMA)
    calls.clear()
    assert indexes.of("ada", lake) is index
    assert calls.count("GetTable") == 3  # of which one is gone
    assert calls.count("ListTables") == 1  # of the new namespace
    assert [each.entry.path for each in index.find("different")] == [("many", "changing", "t1")]
    assert ("table", ("many", "changing", "t2")) not in index.entries
    assert {("namespace", ("many", "fresh")), ("table", ("many", "fresh", "first"))} <= index.entries.keys()

    lake.namespaces.update("many.fresh", name="renamed")
    indexes.of("ada", lake)
    assert ("table", ("many", "renamed", "first")) in index.entries
    assert ("table", ("many", "fresh", "first")) not in index.entries


def test_many_changes_are_read_with_listings(
    lake: Metastore, indexes: Indexes, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_REREAD", 3)
    index = indexes.of("ada", lake)
    add_tables(lake, "burst", 5)
    calls.clear()
    indexes.of("ada", lake)
    assert "GetTable" not in calls
    assert ("table", ("many", "burst", "t4")) in index.entries


def test_index_is_built_again_if_the_feed_has_forgotten_its_position(
    lake: Metastore, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = indexes.of("ada", lake)
    assert index.recent
    end = index.cursor
    add_tables(lake, "late", 1)
    call = Calls.call

    def expired(self: Calls, request: Any, response: Any) -> Any:
        if request.DESCRIPTOR.name == "ListEventsRequest" and request.after:
            raise PreconditionFailed("the events are no longer stored", key="events.expired")
        return call(self, request, response)

    monkeypatch.setattr(Calls, "call", expired)
    indexes.of("ada", lake)
    assert ("table", ("many", "late", "t0")) in index.entries
    assert index.cursor > end
