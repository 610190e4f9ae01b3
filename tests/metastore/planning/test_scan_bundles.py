"""Scan bundles: everything a query reads, planned from the store alone and sent in bounded messages."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pytest

from metastore.planning.test_planner import column, file
from metastore.resource_factory import ResourceFactory, behavior
from metastore.upstreams import connector, current_of, iceberg, iceberg_connector, mirrored, parquet, run
from skiway.errors import InvalidArgument, LimitExceeded, NotFound, PreconditionFailed, Unsupported
from skiway.metastore import queries, statistics
from skiway.metastore.planning import scans
from skiway.metastore.planning.planner import Planner
from skiway.metastore.resources import snapshots
from skiway.model import v1

pytestmark = pytest.mark.parametrize("stores", ["memory"], indirect=True)


@pytest.fixture(autouse=True)
def lake(factory: ResourceFactory) -> v1.Catalog:
    return factory.catalog()


def begin(factory: ResourceFactory, table: v1.Table) -> str:
    request = v1.BeginQueryRequest(
        default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    return queries.begin(factory.home, request).query.query_id


def messages(factory: ResourceFactory, query_id: str, table: v1.Table, **more: Any) -> list[v1.FetchScanBundleResponse]:
    request = v1.FetchScanBundleRequest(query_id=query_id, table_id=table.resource_id, **more)
    return list(scans.fetch(factory.home, request, planner=Planner()))


def fetch_bundle(factory: ResourceFactory, query_id: str, table: v1.Table, **more: Any) -> v1.FetchScanBundleResponse:
    """All messages merged into one."""
    bundle = v1.FetchScanBundleResponse()
    for message in messages(factory, query_id, table, **more):
        bundle.MergeFrom(message)
    return bundle


def with_files(factory: ResourceFactory, *files: v1.FileColumnStats) -> v1.Table:
    factory.namespace("sales")
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    request = v1.PutFileColumnStatsRequest(table_id=table.resource_id, snapshot_id=1, files=files)
    statistics.put_files(factory.home, [request])
    return table


def equal(value: str, column: str = "x") -> v1.Predicate:
    return v1.Predicate(column=column, op=v1.PO_EQ, values=[value])


def test_mirrored_table_is_planned_without_its_upstream(factory: ResourceFactory, tmp_path):
    catalog = iceberg(tmp_path / "ice")
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64(), "name": pa.string()}))
    for number in range(3):
        orders.append(pa.table({"id": [number * 10, number * 10 + 9], "name": ["a", "b"]}))
    run(factory, iceberg_connector(factory, tmp_path / "ice"))
    (table,) = mirrored(factory).values()
    query_id = begin(factory, table)
    shutil.rmtree(tmp_path / "ice")
    bundle = fetch_bundle(factory, query_id, table, predicates=[equal("15", "ID")])
    assert (bundle.report.files_total, bundle.report.files_kept) == (3, 1)
    (data_file,) = bundle.data_files
    assert {each.column_name: (each.min, each.max) for each in data_file.columns} == {
        "id": ("10", "19"),
        "name": ("a", "b"),
    }
    assert bundle.table_info.snapshot_id == current_of(factory, table).snapshot_id
    assert '"name"' in bundle.table_info.schema_json
    assert queries.get(factory.home, v1.GetQueryRequest(query_id=query_id)).query.query_status == v1.QS_COMPLETED


@behavior(47)
def test_later_snapshot_does_not_affect_the_query(factory: ResourceFactory, tmp_path):
    parquet(tmp_path / "up" / "t", "a", id=[1])
    created = connector(factory, str(tmp_path / "up"))
    run(factory, created)
    (table,) = mirrored(factory).values()
    query_id = begin(factory, table)
    before = fetch_bundle(factory, query_id, table)
    parquet(tmp_path / "up" / "t", "b", id=[2])
    run(factory, created)
    assert fetch_bundle(factory, query_id, table) == before
    assert fetch_bundle(factory, begin(factory, table), table).report.files_total == 2


@behavior(57)
def test_predicate_on_an_unrequested_column_still_prunes(factory: ResourceFactory):
    def two(path: str, low: str) -> v1.FileColumnStats:
        return file(path, column("x", min=low, max=low), column("y", min="1", max="1", id=2))

    table = with_files(factory, two("a", "1"), two("b", "2"))
    bundle = fetch_bundle(factory, begin(factory, table), table, required_columns=["Y"], predicates=[equal("2")])
    (data_file,) = bundle.data_files
    assert (data_file.file_path, [each.column_name for each in data_file.columns]) == ("b", ["y"])
    bare = fetch_bundle(factory, begin(factory, table), table, exclude_column_stats=True, predicates=[equal("2")])
    assert [(each.file_path, len(each.columns)) for each in bare.data_files] == [("b", 0)]


@pytest.mark.parametrize("predicates", [[["1"] * 10_001], [["x" * 100_001]], [["1"]] * 1_001])
def test_huge_filters_are_rejected(factory: ResourceFactory, predicates: list[list[str]]):
    table = with_files(factory, file("a", column("x", min="1", max="1")))
    sent = [v1.Predicate(column="x", op=v1.PO_IN, values=values) for values in predicates]
    with pytest.raises(LimitExceeded, match="filter the rows in the client"):
        messages(factory, begin(factory, table), table, predicates=sent)


@behavior(56)
def test_delete_file_indices_refer_to_the_remaining_delete_files(factory: ResourceFactory):
    table = with_files(
        factory,
        file("d1", column(min="1", max="5"), file_content=v1.FC_EQUALITY_DELETES, equality_field_ids=[1]),
        file("d2", file_content=v1.FC_POSITION_DELETES),
        file("d3", column(min="50", max="60"), file_content=v1.FC_EQUALITY_DELETES, equality_field_ids=[1]),
        file("x1", column(min="1", max="9")),
        file("x2", column(min="50", max="59")),
    )
    query_id = begin(factory, table)
    everything = fetch_bundle(factory, query_id, table)
    assert [list(each.delete_file_indices) for each in everything.data_files] == [[0, 1, 2], [0, 1, 2]]
    bundle = fetch_bundle(factory, query_id, table, predicates=[equal("55")])
    assert [each.file_path for each in bundle.delete_files] == ["d2", "d3"]
    assert [(each.file_path, list(each.delete_file_indices)) for each in bundle.data_files] == [("x2", [0, 1])]
    assert list(bundle.delete_files[1].equality_field_ids) == [1]
    assert fetch_bundle(factory, query_id, table) == everything


@behavior(56)
def test_deletes_apply_to_their_partition_and_to_older_files(factory: ResourceFactory):
    def at(path: str, part: str, sequence: int, **more: Any) -> v1.FileColumnStats:
        return file(path, partition_data_json=part, partition_spec_id=1, sequence_number=sequence, **more)

    position, equality = {"file_content": v1.FC_POSITION_DELETES}, {"file_content": v1.FC_EQUALITY_DELETES}
    table = with_files(
        factory,
        at("d0", '{"p": "1"}', 2, **position),
        at("d1", '{"p": "2"}', 2, **position),
        at("d2", '{"p": "1"}', 2, **equality),
        at("d3", "{}", 3, **equality),
        at("x0", '{"p": "1"}', 1),
        at("x1", '{"p": "1"}', 2),
        at("x2", '{"p": "2"}', 3),
        at("x3", "", 1),
    )
    bundle = fetch_bundle(factory, begin(factory, table), table)
    assert [list(each.delete_file_indices) for each in bundle.data_files] == [[0, 2, 3], [0, 3], [], [0, 1, 2, 3]]


def test_deletes_of_a_partition_apply_to_its_spec_only(factory: ResourceFactory):
    """Partitions of several specs can have the same values. Equality deletes apply to older files, from number 0 on."""

    def at(path: str, spec: int, sequence: int, **more: Any) -> v1.FileColumnStats:
        part = {"partition_data_json": '{"p": "1"}', "partition_spec_id": spec}
        return file(path, sequence_number=sequence, **part, **more)

    table = with_files(
        factory,
        at("d0", 1, 2, file_content=v1.FC_POSITION_DELETES),
        at("d1", 1, 2, file_content=v1.FC_EQUALITY_DELETES),
        at("d2", 2, 2, file_content=v1.FC_EQUALITY_DELETES),
        at("d3", 2, 0, file_content=v1.FC_EQUALITY_DELETES),
        at("x0", 1, 1),
        at("x1", 2, 1),
        at("x2", 2, 0),
    )
    bundle = fetch_bundle(factory, begin(factory, table), table)
    assert [list(each.delete_file_indices) for each in bundle.data_files] == [[0, 1], [2], [2]]


def test_messages_are_bounded_and_files_are_in_order(factory: ResourceFactory, monkeypatch):
    monkeypatch.setattr(scans, "MESSAGE_BYTES", 2_000)
    files = [file(f"folder/{number:05d}", column(min="1", max="9"), size_bytes=1) for number in range(300)]
    table = with_files(factory, file("aaa", file_content=v1.FC_POSITION_DELETES), *files)
    head, deletes, *rest = messages(factory, begin(factory, table), table, tasks=10)
    assert (head.report.files_total, head.report.delete_files_kept, head.report.tasks) == (300, 1, 10)
    assert (len(head.data_files), len(deletes.delete_files), len(deletes.data_files)) == (0, 1, 0)
    assert len(rest) > 10
    assert all(each.ByteSize() < 2_300 for each in rest)
    data = [each for message in rest for each in message.data_files]
    assert [each.file_path for each in data] == [each.file_path for each in files]
    assert [sum(each.task == task for each in data) for task in range(10)] == [30] * 10


def test_files_that_exactly_fill_a_message_are_one_message(factory: ResourceFactory, monkeypatch):
    table = with_files(factory, *(file(f"folder/{number}", size_bytes=1) for number in range(4)))
    query_id = begin(factory, table)
    _, every = messages(factory, query_id, table)
    one, *others = (each.ByteSize() for each in every.data_files)
    assert others == [one] * 3
    for limit, expected in ((2 * one, [2, 2]), (2 * one - 1, [1, 1, 1, 1])):
        monkeypatch.setattr(scans, "MESSAGE_BYTES", limit)
        _, *found = messages(factory, query_id, table)
        assert [len(each.data_files) for each in found] == expected


def test_table_without_file_statistics_gives_an_empty_bundle(factory: ResourceFactory):
    factory.namespace("sales")
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    (head,) = messages(factory, begin(factory, table), table)
    assert head.report == v1.ScanReport()


@behavior(54)
def test_invalid_bundle_requests_are_rejected(factory: ResourceFactory):
    table = with_files(factory, file("a"))
    query_id = begin(factory, table)
    with pytest.raises(InvalidArgument) as missing:
        fetch_bundle(factory, query_id, v1.Table())
    assert missing.value.key == "query.table.id.required"
    with pytest.raises(InvalidArgument) as blank:
        fetch_bundle(factory, " ", table)
    assert blank.value.key == "field"
    with pytest.raises(NotFound) as unknown:
        fetch_bundle(factory, "nope", table)
    assert unknown.value.key == "query.not_found"
    with pytest.raises(NotFound) as unpinned:
        fetch_bundle(factory, query_id, factory.table("others"))
    assert unpinned.value.key == "query.table.not.pinned"
    queries.end(factory.home, v1.EndQueryRequest(query_id=query_id))
    with pytest.raises(PreconditionFailed):
        fetch_bundle(factory, query_id, table)


@behavior(59)
def test_bundle_of_another_account_cannot_be_fetched(factory: ResourceFactory):
    table = with_files(factory, file("a"))
    query_id = begin(factory, table)
    factory.account("a2")
    request = v1.FetchScanBundleRequest(query_id=query_id, table_id=table.resource_id)
    with pytest.raises(NotFound):
        list(scans.fetch(factory.realm("a2"), request, planner=Planner()))


def test_snapshot_with_rows_deleted_only_in_the_log_cannot_be_planned(factory: ResourceFactory):
    factory.namespace("sales")
    table = factory.table()
    spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=1, format_metadata={"deleted_rows": b"3"})
    snapshots.create(factory.home, v1.CreateSnapshotRequest(spec=spec))
    query_id = begin(factory, table)
    with pytest.raises(Unsupported, match="3 rows"):
        fetch_bundle(factory, query_id, table)
    assert queries.get(factory.home, v1.GetQueryRequest(query_id=query_id)).query.query_status == v1.QS_FAILED


def test_planner_caches_file_facts(factory: ResourceFactory, calls):
    table = with_files(factory, file("a", column(min="1", max="2")))
    pinned = queries.pinned(factory.home, begin(factory, table), table.resource_id)
    planner = Planner()
    first = planner.facts(pinned)
    calls.reset()
    assert planner.facts(pinned) is first
    assert calls.total == 0
    assert Planner(max_bytes=10).facts(pinned) is not first
