"""UPDATE and DELETE in transactions of Python clients: they take effect together with all other writes, or never.

Tables are read by the server and by PyIceberg, in both write modes and versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

from lake.lakes import Lake, call_function
from lake.lineage_reader import read_lineage
from scope import ALL, sample
from skiway.client import AirportClient, Transaction, col
from skiway.errors import Conflict, ConstraintViolation, InvalidArgument, PermissionDenied, Unsupported
from skiway.metastore import directory, managed, namespaces, transactions
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.transactions import StagingArea
from skiway.model import v1

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.int64()})
MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
MODES: dict[str, dict[str, str]] = {
    "rewritten": {"format-version": "2"},
    "position deletes": {"format-version": "2", **MERGE_ON_READ},
    "deletion vectors": {"format-version": "3", **MERGE_ON_READ},
    "rewritten with lineage": {"format-version": "3"},
}
IN_ALL_MODES = pytest.mark.parametrize("mode", list(MODES))
IN_SAMPLED_MODES = pytest.mark.parametrize("mode", sample(MODES, every=2))

Rows = list[tuple[int, int]]


@dataclass
class Shop:
    """The tables `s.a` and `s.b`, with six rows in two files each, and clients."""

    lake: Lake
    db: AirportClient

    def create(self, mode: str, *names: str) -> None:
        spaces = namespaces.scan(self.lake.realm, self.db_catalog)
        (space,) = spaces
        for name in names:
            managed.create(
                self.lake.realm,
                self.lake.warehouse,
                namespace_id=space.resource_id,
                name=name,
                schema=SCHEMA,
                properties=MODES[mode],
            )
        self.db.reload()
        for name in names:
            self.db.insert(f"s.{name}", rows(1, 2, 3))
            self.db.insert(f"s.{name}", rows(4, 5, 6))

    @property
    def db_catalog(self) -> str:
        ref = v1.NameRef(catalog="managed")
        return directory.resolve_catalog(self.lake.realm, v1.ResolveCatalogRequest(ref=ref)).resource_id.id

    def read(self, name: str) -> Rows:
        """The rows of a table, as another client of the server and PyIceberg read them."""
        with self.lake.client() as other:
            found = in_order(other.scan(name).read_all())
        location = self.state(name).metadata_location
        assert in_order(StaticTable.from_metadata(location).scan().to_arrow()) == found
        return found

    def state(self, name: str) -> managed.ManagedTable:
        return managed.load(self.lake.realm, self.lake.warehouse, self.id(name))

    def id(self, name: str) -> v1.ResourceId:
        ref = v1.NameRef(catalog="managed", path=["s"], name=name.removeprefix("s."))
        return directory.resolve_table(self.lake.realm, v1.ResolveTableRequest(ref=ref)).resource_id

    def snapshots(self, name: str) -> int:
        return len(self.state(name).metadata.snapshots)

    def files(self) -> set[Path]:
        return {path for path in (self.lake.folder / "warehouse").rglob("*") if path.is_file()}

    def orphans(self) -> list[str]:
        """The files that no table refers to."""
        clock = self.lake.realm.clock
        found = sweep_warehouse(self.lake.stores, self.lake.warehouse, clock=clock, min_age_s=-60.0)
        return [each for each in found.removed if "/metadata/" not in each or "staged" in each]


def rows(*ids: int, v: int = 0) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


def in_order(found: pa.Table) -> Rows:
    return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def more(v: pa.Array) -> pa.Array:
    return pc.add(v, 1)


@pytest.fixture
def shop(lake: Lake) -> Iterator[Shop]:
    with lake.client() as db:
        db.create_schema("s")
        yield Shop(lake, db)


# --- effects ----------------------------------------------------------------------------------------------------------


@IN_ALL_MODES
def test_mixed_writes_to_several_tables_take_effect_together(shop: Shop, mode: str) -> None:
    shop.create(mode, "a", "b")
    before = shop.read("s.a"), shop.read("s.b")
    with shop.db.transaction() as t:
        assert t.insert("s.a", rows(7, 8)) == 2
        assert t.update("s.a", {"v": more}, where=col("id").isin([2, 3, 7])) == 3
        assert t.update("s.a", {"v": more}, where=col("id") <= 2) == 2  # computed from the update before
        assert t.delete("s.a", where=col("id").isin([3, 8])) == 2  # changed and inserted before
        assert t.delete("s.b", where=col("id") < 4) == 3  # a whole file
        assert t.update("s.b", {"v": 9}, where=col("id") == 5) == 1
        assert t.delete("s.b", where=col("id") == 6) == 1  # of a file that has changed rows
        assert t.insert("s.b", rows(1)) == 1
        inside = in_order(t.scan("s.a").read_all()), in_order(t.scan("s.b").read_all())
        assert (shop.read("s.a"), shop.read("s.b")) == before
    after = [(1, 1), (2, 2), (4, 0), (5, 0), (6, 0), (7, 1)], [(1, 0), (4, 0), (5, 9)]
    assert (shop.read("s.a"), shop.read("s.b")) == inside == after
    assert shop.snapshots("s.a") == shop.snapshots("s.b") == 3  # one for all writes
    assert shop.orphans() == [], "files that later statements replaced must be deleted"


@IN_SAMPLED_MODES
def test_rows_that_the_transaction_inserted_can_be_deleted(shop: Shop, mode: str) -> None:
    shop.create(mode, "a", "b")
    with shop.db.transaction() as t:
        t.insert("s.a", rows(7, 8, 9))
        t.delete("s.a", where=col("id").isin([1, 7]))
        t.delete("s.a", where=col("id") == 8)
        t.insert("s.b", rows(7))
        t.delete("s.b", where=col("id") == 7)
    assert [number for number, _ in shop.read("s.a")] == [2, 3, 4, 5, 6, 9]
    assert [number for number, _ in shop.read("s.b")] == [1, 2, 3, 4, 5, 6]
    assert (shop.snapshots("s.a"), shop.snapshots("s.b")) == (3, 2), "a table without changes gets no snapshot"
    assert shop.orphans() == []


def test_one_of_several_files_of_an_insert_is_replaced(shop: Shop) -> None:
    (space,) = namespaces.scan(shop.lake.realm, shop.db_catalog)
    managed.create(
        shop.lake.realm,
        shop.lake.warehouse,
        namespace_id=space.resource_id,
        name="parts",
        schema=SCHEMA,
        partition_by=["v"],
    )
    shop.db.reload()
    with shop.db.transaction() as t:
        t.insert("s.parts", pa.table({"id": [1, 2], "v": [1, 2]}))
        t.delete("s.parts", where=col("id") == 1)
    assert shop.read("s.parts") == [(2, 2)]


def test_transaction_without_effect_is_committed(shop: Shop) -> None:
    shop.create("rewritten", "a")
    with shop.db.transaction() as t:
        t.insert("s.a", rows(7))
        t.delete("s.a", where=col("id") == 7)
        t.delete("s.a", where=col("id") == 70)  # no row
    assert shop.db.transaction_status(t.id) == "committed"
    assert (shop.snapshots("s.a"), shop.orphans()) == (2, [])


def test_empty_table_can_be_filled_and_changed(shop: Shop) -> None:
    shop.db.create_table("s.a", SCHEMA)
    with shop.db.transaction() as t:
        assert t.delete("s.a", where=col("id") == 1) == 0
        t.insert("s.a", rows(1, 2))
        assert t.update("s.a", {"v": 5}, where=col("id") == 1) == 1
        t.delete("s.a", where=col("id") == 2)
    assert shop.read("s.a") == [(1, 5)]


@IN_SAMPLED_MODES
def test_rows_are_named_by_the_ids_that_the_transaction_reads(shop: Shop, mode: str) -> None:
    shop.create(mode, "a")
    with shop.db.transaction() as t:
        first = t.scan("s.a", columns=["id", "rowid"], where=col("id") == 1).read_all()
        assert t.update("s.a", pa.table({"v": [4], "rowid": first["rowid"]})) == 1
        with pytest.raises(Conflict, match="does not belong to the snapshot") as raised:
            t.delete("s.a", first["rowid"])  # of the table before the update
        assert raised.value.key == "rowid.foreign"
        now = t.scan("s.a", columns=["id", "rowid"], where=col("id") == 1).read_all()
        assert t.delete("s.a", now["rowid"]) == 1
        last = t.scan("s.a", columns=["rowid"], where=col("id") == 6).read_all()
        assert t.update("s.a", pa.table({"v": [8]}), row_ids=last["rowid"]) == 1
    assert shop.read("s.a") == [(2, 0), (3, 0), (4, 0), (5, 0), (6, 8)]


def test_explicit_transaction_reads_and_returns_its_own_changes(shop: Shop) -> None:
    shop.create("deletion vectors", "a")
    with shop.db.transaction(explicit=True):
        returned = shop.db.update("s.a", {"v": more}, where=col("id") == 1, returning=True).rows
        assert returned is not None
        assert in_order(returned) == [(1, 1)]
        deleted = shop.db.delete("s.a", where=col("id") <= 2, returning=True).rows
        assert deleted is not None
        assert in_order(deleted) == [(1, 1), (2, 0)]
        shop.db.insert("s.a", rows(7))
        assert shop.db.count("s.a") == 5
        sql = "SELECT count(*) AS n, max(id) AS s FROM managed.s.a"
        assert shop.db.call("skiway.query", sql).read_all().to_pylist() == [{"n": 5, "s": 7}]
        assert shop.db.statistics("s.a", "id").max == 7
        assert len(shop.read("s.a")) == 6
    assert len(shop.read("s.a")) == 5


def test_other_reads_in_the_block_do_not_see_its_writes(shop: Shop) -> None:
    shop.create("rewritten", "a")
    with shop.db.transaction() as t:
        t.delete("s.a", where=col("id") == 1)
        assert (shop.db.count("s.a"), t.scan("s.a").read_all().num_rows) == (6, 5)


def test_large_scan_in_a_transaction_reads_one_state(shop: Shop) -> None:
    """A scan of several parts that was planned before a statement still finds its state."""
    shop.create("rewritten", "a")
    with shop.db.transaction(explicit=True):
        shop.db.delete("s.a", where=col("id") == 1)
        planned = shop.db.bind("s.a").parts()
        shop.db.delete("s.a", where=col("id") == 2)
        assert sum(shop.db.read_part(part).read_all().num_rows for part in planned) == 5
        assert shop.db.count("s.a") == 4


@pytest.mark.parametrize("mode", ["deletion vectors", "rewritten with lineage"])
def test_rows_keep_their_lineage(shop: Shop, mode: str) -> None:
    shop.create(mode, "a")
    with shop.db.transaction() as t:
        t.insert("s.a", rows(7, 8))
        t.update("s.a", {"v": 1}, where=col("id").isin([2, 7]))
        t.update("s.a", {"v": 2}, where=col("id").isin([2, 8]))
        shop.db.insert("s.a", rows(9))  # takes the next row ids before the commit
    found = read_lineage(shop.state("s.a").metadata)
    assert {number: found[number] for number in range(1, 7)} == {
        1: (0, 1),
        2: (1, 4),
        3: (2, 1),
        4: (3, 2),
        5: (4, 2),
        6: (5, 2),
    }
    assert found[9] == (6, 3)
    assert found[7][1] == found[8][1] == 4
    ids = [row_id for row_id, _ in found.values()]
    assert None not in ids
    assert len(set(ids)) == len(ids) == 9


# --- conflicts --------------------------------------------------------------------------------------------------------


def _rewrite(db: AirportClient) -> None:
    db.update("s.b", {"v": 7}, where=col("id") == 2)


def _delete(db: AirportClient) -> None:
    db.delete("s.b", where=col("id") == 3)


@IN_SAMPLED_MODES
@pytest.mark.parametrize("other", [_rewrite, _delete])
def test_conflict_on_one_table_changes_nothing(shop: Shop, mode: str, other: Callable[[AirportClient], None]) -> None:
    shop.create(mode, "a", "b")
    before = shop.read("s.a")
    with shop.lake.client() as stranger, pytest.raises(Conflict) as raised, shop.db.transaction() as t:  # noqa: PT012
        t.update("s.a", {"v": 1})
        t.insert("s.a", rows(7))
        t.delete("s.b", where=col("id") == 1)  # of the same file
        other(stranger)
        after = shop.read("s.b")
    assert raised.value.key == "commit.failed"
    assert (shop.read("s.a"), shop.read("s.b")) == (before, after)
    assert shop.db.transaction_status(t.id) == "aborted"
    assert shop.orphans() == []


@IN_SAMPLED_MODES
def test_changes_of_other_files_and_inserts_of_others_stay(shop: Shop, mode: str) -> None:
    shop.create(mode, "a")
    with shop.lake.client() as stranger, shop.db.transaction() as t:
        t.update("s.a", {"v": 1}, where=col("id") == 1)
        stranger.insert("s.a", rows(7))
        stranger.delete("s.a", where=col("id") == 4)  # of the other file
        t.delete("s.a", where=col("id") == 2)
    assert shop.read("s.a") == [(1, 1), (3, 0), (5, 0), (6, 0), (7, 0)]


def test_table_is_altered_during_the_transaction(shop: Shop) -> None:
    shop.create("position deletes", "a")
    with shop.lake.client() as stranger, shop.db.transaction() as t:
        t.update("s.a", {"v": 1}, where=col("id") == 1)
        stranger.rename_column("s.a", "v", "w")
        t.delete("s.a", where=col("id") == 1)
        t.insert("s.a", rows(7))
    with shop.lake.client() as stranger:
        assert sorted(stranger.scan("s.a").read_all()["w"].to_pylist()) == [0] * 6


def test_concurrent_statements_of_one_transaction_do_not_overwrite_each_other(shop: Shop) -> None:
    shop.create("rewritten", "a")

    def run(number: int) -> int:
        try:
            return t.update("s.a", {"v": more}, where=col("id") == number)
        except Conflict as error:
            if error.key not in ("transaction.statements", "rowid.foreign"):
                raise
            return 0

    with shop.db.transaction() as t:
        _ = t.id
        with ThreadPoolExecutor(3) as pool:
            counts = list(pool.map(run, (1, 2, 3)))
    assert 1 <= sum(counts) <= 3
    assert [v for _, v in shop.read("s.a")] == [*counts, 0, 0, 0]


@pytest.mark.parametrize("failing", [True, False])
def test_files_are_deleted_if_the_block_fails(shop: Shop, failing: bool) -> None:
    shop.create("deletion vectors", "a", "b")
    before, files = (shop.read("s.a"), shop.read("s.b")), shop.files()
    with pytest.raises((ZeroDivisionError, InvalidArgument)), shop.db.transaction() as t:  # noqa: PT012
        t.update("s.a", {"v": 1}, where=col("id") < 3)
        t.delete("s.b", where=col("id") == 1)
        t.insert("s.b", rows(7))
        t.update("s.b", {"v": 1}, where=col("id") == 7)
        assert shop.files() > files
        if failing:
            t.update("s.b", {"v": "text"})
        raise ZeroDivisionError
    assert ((shop.read("s.a"), shop.read("s.b")), shop.files()) == (before, files)


# --- over gRPC --------------------------------------------------------------------------------------------------------


def test_metastore_client_continues_a_transaction(shop: Shop) -> None:
    shop.create("deletion vectors", "a")
    realm = replace(shop.lake.realm, caller="writer")
    with shop.db.transaction() as t:
        t.delete("s.a", where=col("id") < 6)
        first = v1.AppendRowsRequest(transaction_id=t.id, table_id=shop.id("s.a"), rows=_stream(rows(7)))
        transactions.append(realm, [first], area=StagingArea(shop.lake.warehouse))
        assert t.update("s.a", {"v": 1}, where=col("id") == 7) == 1
    assert shop.read("s.a") == [(6, 0), (7, 1)]


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def write_ids(shop: Shop, unit: str) -> list[str]:
    realm = replace(shop.lake.realm, caller="writer")
    found = transactions.get(realm, v1.GetTransactionRequest(transaction_id=unit)).transaction
    return [each.write_id for each in found.writes]


def commit(shop: Shop, unit: str, *only: str, **more: Any) -> None:
    chosen = v1.WriteSelection(write_ids=only) if only else None
    request = v1.CommitTransactionRequest(transaction_id=unit, only=chosen, **more)
    transactions.commit(replace(shop.lake.realm, caller="writer"), request, area=StagingArea(shop.lake.warehouse))


def test_change_that_is_not_chosen_leaves_the_files_that_it_would_have_replaced(shop: Shop) -> None:
    shop.create("rewritten", "a")
    before = shop.read("s.a")
    with shop.db.transaction() as t:
        t.insert("s.a", rows(7, 8))
        t.delete("s.a", where=col("id") == 7)
        inserted, _ = write_ids(shop, t.id)
        commit(shop, t.id, inserted)
    assert shop.read("s.a") == [*before, (7, 0), (8, 0)]
    assert shop.orphans() == []


def test_commit_of_chosen_writes_needs_all_that_a_change_is_based_on(shop: Shop) -> None:
    shop.create("rewritten", "a", "b")
    before = shop.read("s.a")
    with shop.db.transaction() as t:
        t.insert("s.b", rows(7))
        t.insert("s.a", rows(7))
        t.delete("s.a", where=col("id") == 7)
        t.insert("s.a", rows(8))
        of_b, inserted, deleted, later = write_ids(shop, t.id)
        for key, call in {
            "transaction.write.incomplete": lambda: commit(shop, t.id, of_b, deleted, later),
            "transaction.replaced": lambda: commit(shop, t.id, replaced_table_ids=[shop.id("s.a")]),
        }.items():
            with pytest.raises(InvalidArgument) as raised:
                call()
            assert raised.value.key == key
            assert shop.read("s.a") == before
        commit(shop, t.id, inserted, deleted, later)
    assert shop.read("s.a") == [*before, (8, 0)]
    assert shop.read("s.b") == before
    assert shop.orphans() == []


# --- callers ----------------------------------------------------------------------------------------------------------


def test_caller_without_permission_changes_nothing(shop: Shop) -> None:
    shop.create("rewritten", "a")
    files = shop.files()
    with shop.lake.client(token="reader") as reader, reader.transaction() as t:
        for change in (
            lambda: t.update("s.a", {"v": 1}),
            lambda: t.delete("s.a", where=col("id") == 1),
        ):
            with pytest.raises(PermissionDenied):
                change()
    assert shop.files() == files


def test_ddl_cannot_be_staged(shop: Shop) -> None:
    shop.create("rewritten", "a")
    with shop.db.transaction(explicit=True):
        for run in (
            lambda: call_function(shop.db, "tag", "s.a", "first"),
            lambda: shop.db.rename_column("s.a", "v", "w"),
        ):
            with pytest.raises(Unsupported, match="only INSERT, UPDATE, DELETE and MERGE"):
                run()
    assert len(shop.read("s.a")) == 6


# --- MERGE ------------------------------------------------------------------------------------------------------------

ON = "target.id = source.id"


@IN_ALL_MODES
def test_merge_is_committed_with_the_other_writes(shop: Shop, mode: str) -> None:
    shop.create(mode, "a", "b")
    before = shop.read("s.a"), shop.read("s.b")
    with shop.db.transaction() as t:
        t.insert("s.b", rows(7, v=70))
        t.delete("s.b", where=col("id") == 1)
        t.update("s.a", {"v": 5}, where=col("id") == 3)
        (counts,) = t.call("skiway.merge", "s.a", "SELECT * FROM s.b WHERE id <> 2", ON).read_all().to_pylist()
        assert counts == {"table": "managed.s.a", "inserted": 1, "updated": 4, "deleted": 0}
        clauses = {"clauses": "WHEN MATCHED THEN DELETE"}
        t.call("skiway.merge", "s.a", "SELECT 7 AS id UNION ALL SELECT 6", ON, named=clauses).read_all()
        t.insert("s.a", rows(8))
        seen = t.call("skiway.query", "SELECT count(*) AS n FROM s.a").read_all().to_pylist()
        assert seen == [{"n": 6}]
        assert (shop.read("s.a"), shop.read("s.b")) == before
    assert shop.read("s.a") == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (8, 0)]
    assert shop.read("s.b") == [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 70)]
    assert shop.snapshots("s.a") == shop.snapshots("s.b") == 3
    assert shop.orphans() == []


@pytest.mark.parametrize("is_empty", [False, True])
def test_rows_that_others_insert_before_the_commit_are_a_conflict_with_a_merge(shop: Shop, is_empty: bool) -> None:
    shop.create("rewritten", "a", "b")
    if is_empty:
        shop.db.create_table("s.c", SCHEMA)
    name = "s.c" if is_empty else "s.a"
    before, files = shop.db.count(name), shop.files()
    with pytest.raises(Conflict, match="no longer the current one"), shop.db.transaction() as t:  # noqa: PT012
        t.insert("s.b", rows(9))
        t.call("skiway.merge", name, "SELECT 9 AS id, 1 AS v", ON).read_all()
        with shop.lake.client() as other:
            other.insert(name, rows(9))
            inserted = shop.files()
    assert (shop.db.count(name), shop.db.count("s.b")) == (before + 1, 6)
    assert {path for path in shop.files() - files if path.suffix == ".parquet"} <= inserted
    assert shop.orphans() == []


def test_merge_into_an_empty_table_is_staged(shop: Shop) -> None:
    shop.db.create_table("s.c", SCHEMA)
    with shop.db.transaction(explicit=True):
        assert call_function(shop.db, "merge", "s.c", "SELECT 1 AS id, 2 AS v", ON)["inserted"] == 1
        assert call_function(shop.db, "merge", "s.c", "SELECT 1 AS id, 3 AS v", ON)["updated"] == 1
        with shop.lake.client() as other:
            assert other.count("s.c") == 0
    assert shop.read("s.c") == [(1, 3)]
    assert shop.snapshots("s.c") == 1


@pytest.mark.parametrize("failing", [True, False])
def test_files_of_a_merge_are_deleted_with_the_transaction(shop: Shop, failing: bool) -> None:
    shop.create("rewritten", "a")
    files = shop.files()
    with pytest.raises((ZeroDivisionError, ConstraintViolation)), shop.db.transaction() as t:  # noqa: PT012
        source = "SELECT 1 AS id, 2 AS v UNION ALL SELECT 1, 3" if failing else "SELECT 1 AS id, 2 AS v"
        t.call("skiway.merge", "s.a", source, ON).read_all()
        raise ZeroDivisionError
    assert shop.files() == files


# --- the same program without a transaction ---------------------------------------------------------------------------

_TABLES = st.sampled_from(["a", "b"])
_RANGES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), _TABLES, st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        st.tuples(st.just("update"), _TABLES, _RANGES),
        st.tuples(st.just("delete"), _TABLES, _RANGES),
        st.tuples(st.just("merge"), _TABLES, _RANGES),
    ),
    min_size=1,
    max_size=7,
)


def _run(step: Any, target: Transaction | AirportClient, suffix: str) -> int:
    kind, table, given_ids = step
    name = f"s.{table}{suffix}"
    if kind == "insert":
        done = target.insert(name, rows(*given_ids))
    elif kind == "merge":
        low, high = given_ids
        other = f"s.{'b' if table == 'a' else 'a'}{suffix}"
        source = f"SELECT DISTINCT ON (id) id, v + 1 AS v FROM {other} WHERE id BETWEEN {low} AND {high} ORDER BY id, v"
        (counts,) = target.call("skiway.merge", name, source, ON).read_all().to_pylist()
        done = counts["inserted"] + counts["updated"]
    else:
        low, high = given_ids
        where = (col("id") >= low) & (col("id") <= high)
        done = target.update(name, {"v": more}, where=where) if kind == "update" else target.delete(name, where=where)
    return done if isinstance(done, int) else done.count


@pytest.mark.parametrize("mode", sample(MODES, every=9, keep=lambda mode: mode == "deletion vectors")[1:])
def test_transaction_equals_the_same_statements_one_by_one(shop: Shop, mode: str) -> None:
    numbers = iter(range(1000))

    @settings(max_examples=20 if ALL else 3, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def check(steps: list[Any]) -> None:
        one, other = f"x{next(numbers)}", f"x{next(numbers)}"
        shop.create(mode, *(f"{table}{suffix}" for table in "ab" for suffix in (one, other)))
        expected = [_run(step, shop.db, other) for step in steps]
        with shop.db.transaction() as t:
            counts = [_run(step, t, one) for step in steps]
        assert counts == expected
        for table in "ab":
            assert shop.read(f"s.{table}{one}") == shop.read(f"s.{table}{other}")

    check()
    assert shop.orphans() == []
