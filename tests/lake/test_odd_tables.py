"""Every table of a source is served with its rows, or listed with the reason why it is not, and the counts of a sync add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from formats.engine_tables import delta_rs_folder, pyiceberg_folder
from formats.odd_tables import delta_folder, iceberg_folder, parquet_folder, write_delta
from formats.oracles import assert_same_rows
from lake.lakes import KINDS, Lake, opened_lake
from skiway.client import AirportClient
from skiway.errors import PreconditionFailed
from skiway.lake.policies import PolicyChecks
from skiway.metastore import connectors, namespaces, policies, tables
from skiway.metastore.reconcile.outcomes import Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs.profile.snapshots import profile_snapshot
from skiway.sql import QueryEngine

FOLDERS: dict[str, Callable[[Path], dict[str, pa.Table | None]]] = {
    "delta": delta_folder,
    "iceberg": iceberg_folder,
    "parquet": parquet_folder,
}
CORE, STATS = v1.CAP_METADATA_ONLY_CORE, v1.CAP_STATS_ONLY_ASYNC
ONE = pa.table({"id": pa.array([1], pa.int64()), "s": ["abc"]})


def _no_spark() -> Any:
    pytest.fail("these tables are small, so no Spark is needed")


def in_process(*arguments: Any, **named: Any) -> Any:
    return profile_snapshot(*arguments, spark=_no_spark, **named)


@dataclass
class Mirrored:
    """A folder of tables, and a catalog `c` that mirrors it."""

    lake: Lake
    kind: str
    folder: Path

    def __post_init__(self) -> None:
        self.catalog = self.lake.catalog("c", connector_ref="files")
        spec = v1.ConnectorSpec(
            display_name="files",
            kind=KINDS[self.kind],
            uri=str(self.folder),
            properties={} if self.kind == "parquet" else {f"{self.kind}.source": "filesystem"},
            destination=v1.ConnectorDestination(catalog_id=self.catalog.resource_id),
        )
        made = connectors.create(self.lake.realm, v1.CreateConnectorRequest(spec=spec), secrets=self.lake.secrets)
        self.connector = made.connector

    def sync(self, *modes: Any, profile: Any = in_process) -> Outcome:
        outcome = Outcome()
        for mode in modes or (CORE,):
            reconciler = Reconciler(self.lake.secrets, profile)
            outcome = reconciler.run(self.lake.realm, self.connector.resource_id, mode=mode, before=outcome)
        return outcome

    def records(self) -> dict[tuple[str, ...], v1.Table]:
        """The records of all tables by their names upstream."""
        return {
            (*table.upstream.namespace_path, table.upstream.table_display_name): table
            for namespace in namespaces.scan(self.lake.realm, self.catalog.resource_id.id)
            for table in tables.scan(self.lake.realm, namespace.resource_id.id)
        }


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[Callable[[str], Mirrored]]:
    with opened_lake(tmp_path / "lake") as lake:
        (tmp_path / "source").mkdir()
        yield lambda kind: Mirrored(lake, kind, tmp_path / "source")


def rows_of(db: AirportClient, name: tuple[str, str]) -> pa.Table:
    """The rows, with geometries as the bytes that are stored."""
    found = db.scan(name).read_all()
    columns = {name: found[name] for name in found.column_names if name != "rowid"}
    return pa.table({name: _bytes_of_geometries(column) for name, column in columns.items()})


def _bytes_of_geometries(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if "wkb" not in str(column.type):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_table_is_served_with_equal_rows_or_listed_with_a_reason(
    mirrored: Callable[[str], Mirrored], kind: str
) -> None:
    source = mirrored(kind)
    expected = FOLDERS[kind](source.folder)
    reasons = assert_served_or_listed(source, expected)
    assert reasons.keys() == {name for name, rows in expected.items() if rows is None}
    for name, reason in reasons.items():
        assert ("corrupt" in reason) == (name == "damaged")


@pytest.mark.parametrize(("kind", "write"), [("delta", delta_rs_folder), ("iceberg", pyiceberg_folder)])
def test_tables_of_other_engines_are_served(
    mirrored: Callable[[str], Mirrored], kind: str, write: Callable[[Path], Mapping[str, pa.Table]]
) -> None:
    source = mirrored(kind)
    assert assert_served_or_listed(source, write(source.folder)) == {}


def assert_served_or_listed(source: Mirrored, expected: Mapping[str, pa.Table | None]) -> dict[str, str]:
    """Synchronise a source, and compare every table with its rows, unless it is listed with the reason why it has none.

    Return these reasons. The counts of the sync add up, and a second one changes nothing.
    """
    outcome, kind = source.sync(), source.kind
    names = {_case(name, kind): name for name in source.records()}
    reasons = {_case(tuple(name.split(".")), kind): reason for name, reason in outcome.failures.items()}
    assert names.keys() == expected.keys()
    for name, reason in reasons.items():
        assert "Error" not in reason, name
        assert ";" in reason or "corrupt log" in reason, name  # what to do follows
    assert (outcome.scanned, outcome.changed, len(outcome.failures)) == (
        len(expected),
        len(expected) - len(reasons),
        len(reasons),
    )
    with source.lake.client("c") as db:
        listed = {(schema.name, each.name): each for schema in db.schemas() for each in schema.tables}
        listed = {name: each for name, each in listed.items() if name[0] != "skiway"}
        assert {_case(name, kind) for name in listed} == expected.keys()
        shown = {
            (row["schema_name"], row["table_name"]): row for row in db.scan("skiway.tables").read_all().to_pylist()
        }
        columns = db.scan("skiway.columns").read_all().to_pylist()
        assert shown.keys() == listed.keys()
        for name, each in listed.items():
            case = _case(name, kind)
            rows, reason = expected[case], reasons.get(case)
            assert shown[name]["problem"] == reason
            if reason is None:
                assert rows is not None, case
                assert_same_rows(rows_of(db, name), rows)
                assert each.comment == ""
                continue
            assert each.comment == f"table {name[1]!r} cannot be read: {reason}"
            with pytest.raises(PreconditionFailed) as refused:
                db.scan(name).read_all()
            assert refused.value.message.endswith(reason)
            damage = [(row["column_name"], row["damage"]) for row in columns if row["table_name"] == name[1]]
            assert (None, reason) in damage
    assert source.sync().changed == 0
    return reasons


def _case(name: tuple[str, ...], kind: str) -> str:
    """The feature of a table: LooseTable has folders of its own below the one that is named after it."""
    return name[0].partition(".")[0] if kind == "iceberg" and name[-1] == "table" else name[-1]


@pytest.mark.parametrize("name", ["variant", "nanoseconds", "orc", "avro", "unknown", "geometry_plain"])
def test_profiles_of_odd_tables_succeed(mirrored: Callable[[str], Mirrored], name: str) -> None:
    source = mirrored("iceberg")
    iceberg_folder(source.folder, name)
    outcome = source.sync(CORE, STATS)
    assert (outcome.failures, outcome.scanned, outcome.changed) == ({}, 1, 1)
    assert outcome.message == (
        f"rows in Avro and ORC are read, but not profiled ({name}.account.table: 1 file in {name}): rewrite these files as "
        "Parquet for statistics of all rows"
        if name in ("orc", "avro")
        else ""
    )
    again = source.sync(CORE, STATS)
    assert (again.failures, again.changed, again.message) == ({}, 0, "")


def test_bounds_near_the_limits_of_nanoseconds_contain_all_values(mirrored: Callable[[str], Mirrored]) -> None:
    source = mirrored("parquet")
    parquet_folder(source.folder, "nanoseconds")
    assert source.sync(CORE, STATS).failures == {}
    with source.lake.client("c") as db:
        found = db.scan("skiway.column_stats").read_all().to_pylist()
    bounds = {row["column_name"]: (row["min"], row["max"]) for row in found}
    assert bounds == {
        "t": ("1677-09-21T00:12:43.145224", "2262-04-11T23:47:16.854776"),
        "z": ("1677-09-21T00:12:43.145224Z", "2262-04-11T23:47:16.854776Z"),
    }


def test_problem_is_stored_once_and_removed_when_the_table_can_be_read(mirrored: Callable[[str], Mirrored]) -> None:
    source = mirrored("delta")
    write_delta(source.folder / "t", ONE)
    log = source.folder / "t" / "_delta_log" / f"{0:020d}.json"
    good = log.read_text()
    log.write_text("{nonsense")
    first = source.sync()
    record = source.records()["t",]
    assert list(first.failures.values()) == [record.upstream.problem]
    assert record.upstream.uri == str(source.folder / "t")
    assert source.sync().failures == first.failures
    assert source.records()["t",] == record
    log.write_text(good)
    assert (source.sync().failures, source.sync().changed) == ({}, 0)
    fixed = source.records()["t",]
    assert (fixed.upstream.problem, fixed.resource_id) == ("", record.resource_id)
    with source.lake.client("c") as db:
        assert_same_rows(rows_of(db, ("files", "t")), ONE)


def test_table_that_becomes_unreadable_keeps_its_columns_and_shows_the_reason(
    mirrored: Callable[[str], Mirrored],
) -> None:
    source = mirrored("delta")
    write_delta(source.folder / "t", ONE)
    assert source.sync().failures == {}
    log = source.folder / "t" / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace('"readerFeatures": []', '"readerFeatures": ["timeTravelByMagic"]'))
    reason = source.sync().failures["t"]
    with source.lake.client("c") as db:
        (schema,) = (each for each in db.schemas() if each.name == "files")
        (table,) = schema.tables
        assert (table.comment, table.schema.names[:2]) == (f"cannot be synchronised: {reason}", ["id", "s"])
        (row,) = db.scan("skiway.tables").read_all().to_pylist()
        assert row["problem"] == reason


def test_table_whose_files_cannot_be_listed_is_listed_with_the_reason(mirrored: Callable[[str], Mirrored]) -> None:
    """Its metadata can be read, so its columns are known, but not its manifests."""
    source = mirrored("iceberg")
    iceberg_folder(source.folder, "simple")
    for manifest in source.folder.rglob("snap-*.avro"):
        manifest.write_bytes(b"no Avro")
    first = source.sync()
    (reason,) = first.failures.values()
    (record,) = source.records().values()
    assert (record.upstream.problem, "corrupt" in reason) == (reason, True)
    assert source.sync().failures == first.failures
    assert list(source.records().values()) == [record]


def test_transient_errors_list_new_tables_and_leave_known_ones(
    mirrored: Callable[[str], Mirrored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from skiway.errors import Unavailable
    from skiway.formats.delta.table import DeltaTable

    source = mirrored("delta")
    write_delta(source.folder / "known", ONE)
    source.sync()
    write_delta(source.folder / "new", ONE)

    def fail(*_: object) -> None:
        raise Unavailable("the store does not respond; try again", key="source.unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "_load", fail)
        outcome = source.sync()
    assert (len(outcome.failures), outcome.transient) == (2, True)
    problems = {name: each.upstream.problem for name, each in source.records().items()}
    assert problems == {("known",): "", ("new",): "the store does not respond; try again"}


def test_rest_clients_do_not_see_unreadable_tables_and_learn_the_reason(mirrored: Callable[[str], Mirrored]) -> None:
    from pyiceberg.exceptions import NoSuchTableError

    source = mirrored("iceberg")
    iceberg_folder(source.folder, "simple", "hypercube", "variant")
    source.sync()
    with source.lake.rest("c") as catalog:
        assert catalog.list_tables(("simple", "account")) == [("simple", "account", "table")]
        assert catalog.list_tables(("hypercube", "account")) == []
        with pytest.raises(NoSuchTableError, match="column 'v' has type hypercube"):
            catalog.load_table(("hypercube", "account", "table"))
        with pytest.raises(ValueError, match="field type: 'variant'"):  # an error of PyIceberg, which has no variants
            catalog.load_table(("variant", "account", "table"))


def test_table_whose_name_is_taken_by_another_one_of_the_source_fails_and_leaves_that_one(
    mirrored: Callable[[str], Mirrored],
) -> None:
    """Both names are equal after normalization."""
    source = mirrored("delta")
    for name in ("caf\u00e9", "cafe\u0301"):
        write_delta(source.folder / name, ONE)
    for _ in range(2):
        outcome = source.sync()
        (reason,) = outcome.failures.values()
        assert "another table or view has this name; rename that one" in reason
        assert (outcome.scanned, len(outcome.failures)) == (2, 1)
        (record,) = source.records().values()
        assert record.upstream.problem == ""
    with source.lake.client("c") as db:
        assert_same_rows(rows_of(db, ("files", "caf\u00e9")), ONE)


def test_callers_restricted_by_policies_get_reasons_without_locations(
    mirrored: Callable[[str], Mirrored], queries: QueryEngine
) -> None:
    source = mirrored("delta")
    variant = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}
    write_delta(source.folder / "char", ONE, also=({**variant, "type": "char(3)"},))
    write_delta(source.folder / "variant", ONE, also=(variant,), features=("variantType",))
    write_delta(source.folder / "unlisted", ONE)
    (source.folder / "unlisted" / "_delta_log" / f"{0:020d}.json").write_text("{nonsense")
    source.sync()
    records = source.records()
    full = {name: record.upstream.problem for (name,), record in records.items()}
    assert str(source.folder) in full["char"]
    spec = v1.PolicySpec(
        display_name="few rows",
        subjects=["user:analyst"],
        objects=[source.catalog.resource_id],
        row_filter=v1.PolicyFilter(predicate="true"),
    )
    policies.calls(PolicyChecks(queries)).create(source.lake.realm, v1.CreatePolicyRequest(spec=spec))
    with source.lake.client("c", token="analyst") as db:
        shown = {row["table_name"]: row["problem"] for row in db.scan("skiway.tables").read_all().to_pylist()}
        comments = {table.name: table.comment for schema in db.schemas() for table in schema.tables}
    assert shown == {
        "char": full["char"].replace(f" at {str(source.folder / 'char')!r}", ""),
        "variant": full["variant"],
        "unlisted": full["unlisted"].replace(f" at {str(source.folder / 'unlisted')!r}", ""),
    }
    assert str(source.folder) not in str(shown) + str(comments)
    assert "variantType" in shown["variant"]
