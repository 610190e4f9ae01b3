"""Policies over Airport: restricted callers see the rows and values that policies leave, whatever they ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from lake.policed_lake import CANARY, NUMBERS, ROWS, VISIBLE, PolicedLake, policed_lake
from skiway.client import AirportClient, col
from skiway.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.lake import Handles, Sources
from skiway.metastore import Realm, catalogs, grants, namespaces, policies, statistics, tables, transactions
from skiway.metastore.managed.states import load
from skiway.metastore.managed.tables import check_fillable
from skiway.metastore.records import keys
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.metastore.statistics.api import field_names
from skiway.metastore.transactions import StagingArea
from skiway.metastore.usage import MetricsReport, add_report
from skiway.model import v1
from skiway.sandbox.queries import Queries
from skiway.security import MemorySecrets
from skiway.sql import QueryEngine
from skiway.storage import Put


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine) -> Iterator[PolicedLake]:
    with policed_lake(tmp_path, queries) as made:
        yield made


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory, queries: QueryEngine) -> Iterator[PolicedLake]:
    """A lake with a row filter, for tests that change nothing."""
    with policed_lake(tmp_path_factory.mktemp("filtered"), queries) as made:
        made.filter()
        yield made


@pytest.fixture
def analyst(policed: PolicedLake) -> Iterator[AirportClient]:
    """A reader from the region EU."""
    with policed.lake.client(token="analyst") as client:
        yield client


@pytest.fixture
def owner(policed: PolicedLake) -> Iterator[AirportClient]:
    """A writer for whom policies make an exception."""
    with policed.lake.client() as client:
        yield client


def read(client: AirportClient, name: str = "s.people", **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.scan(name, **options).read_all().to_pylist()
    return rows


def query(client: AirportClient, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.call("skiway.query", sql).read_all().to_pylist()
    return rows


def test_row_filter_keeps_rows_by_the_claims_of_the_caller(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.filter()
    assert sorted(row["id"] for row in read(analyst)) == VISIBLE
    assert query(analyst, "SELECT count(*) AS n, max(region) AS r FROM s.people") == [{"n": len(VISIBLE), "r": "EU"}]
    assert len(read(owner)) == ROWS.num_rows
    with policed.lake.client(token="reader") as without_claims:
        assert read(without_claims) == []


def test_masks_replace_values_before_anything_else_sees_them(policed: PolicedLake, analyst: AirportClient) -> None:
    policed.mask()
    rows = read(analyst)
    assert {(row["email"], row["number"]) for row in rows} == {(None, None)}
    assert [row["id"] for row in sorted(rows, key=lambda row: row["id"])] == list(range(ROWS.num_rows))
    assert read(analyst, where=col("number") == NUMBERS[3]) == []
    assert query(analyst, f"SELECT id FROM s.people WHERE email LIKE '{CANARY}%'") == []
    assert query(analyst, "SELECT count(email) AS n FROM s.people") == [{"n": 0}]


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        (v1.MK_PARTIAL, "email", lambda value: "*" * (len(value) - 4) + value[-4:]),
        (v1.MK_PARTIAL, "region", lambda value: "**"),
        (v1.MK_PARTIAL, "number", lambda value: None),
        (v1.MK_HASH, "day", lambda value: None),
    ],
)
def test_built_in_masks(
    policed: PolicedLake, analyst: AirportClient, kind: v1.MaskKind.ValueType, column: str, expected: Any
) -> None:
    policed.mask([column], kind)
    found = {row["id"]: row[column] for row in read(analyst, columns=["id", column])}
    assert found == {row["id"]: expected(row[column]) for row in ROWS.to_pylist()}


def test_hashes_are_equal_for_equal_values_and_need_the_key_of_the_account(
    policed: PolicedLake, analyst: AirportClient
) -> None:
    policed.mask(["region", "number"], v1.MK_HASH)
    rows = sorted(read(analyst), key=lambda row: row["id"])
    texts, numbers = [row["region"] for row in rows], [row["number"] for row in rows]
    assert len(set(texts)) == 2
    assert {len(text) for text in texts} == {64}
    assert not {sha256(b"EU").hexdigest(), sha256(b"US").hexdigest(), "EU", "US"} & set(texts)
    assert len(set(numbers)) == ROWS.num_rows
    assert not set(numbers) & set(NUMBERS)
    assert [row["region"] for row in sorted(read(analyst), key=lambda row: row["id"])] == texts


def test_mask_is_an_expression_over_the_row_and_the_claims(policed: PolicedLake, analyst: AirportClient) -> None:
    expression = "CASE WHEN list_contains(caller('groups'), lower('EMEA')) AND id < 3 THEN email ELSE 'x' || id END"
    policed.mask(["EMAIL"], v1.MK_EXPRESSION, expression=expression)
    found = {row["id"]: row["email"] for row in read(analyst, columns=["email", "id"])}
    assert found == {i: ROWS["email"][i].as_py() if i < 3 else f"x{i}" for i in range(ROWS.num_rows)}


def test_masked_structs_can_have_fields_with_any_names(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    rows = pa.table({"id": [1], "stay": [{"at": 7, "left": [{"join": "x"}]}]})
    owner.create_table("s.stays", rows.schema)
    owner.insert("s.stays", rows)
    place = policed.namespace.resource_id
    policed.mask(["stay"], expression="{'at': stay['at'] % 2, 'left': NULL}", kind=v1.MK_EXPRESSION, objects=[place])
    assert read(analyst, "s.stays") == [{"id": 1, "stay": {"at": 1, "left": None}}]
    owner.call("skiway.create_view", "s.later", "SELECT stay FROM s.stays").read_all()
    assert query(analyst, "SELECT stay['at'] AS t FROM s.later") == [{"t": 1}]


def test_claims_are_constants_whatever_they_contain(policed: PolicedLake, analyst: AirportClient) -> None:
    policed.filter("list_contains(caller('teams'), 'it''s') AND caller('subject') = 'analyst' AND id < 2")
    assert sorted(row["id"] for row in read(analyst)) == [0, 1]


def test_all_filters_hold_and_the_strictest_mask_wins(policed: PolicedLake, analyst: AirportClient) -> None:
    policed.filter()
    policed.filter("id < 10", name="first ten")
    policed.mask(["name"], v1.MK_EXPRESSION, expression="'shown'", name="a")
    policed.mask(["n*"], v1.MK_HASH, name="b")
    policed.mask(["nam*"], v1.MK_NULL, name="c", subjects=["group:emea"])
    rows = read(analyst)
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 5, 6, 7, 9]
    assert {row["name"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("subjects", "exceptions", "is_restricted"),
    [
        (["everyone"], [], True),
        (["everyone"], ["group:emea"], False),
        (["user:analyst"], [], True),
        (["user:Analyst"], [], False),
        (["group:emea"], ["user:reader"], True),
        (["group:other", "role:Default"], [], True),
        (["role:default"], ["role:developer", "user:analyst"], False),
    ],
)
def test_subjects_and_exceptions(
    policed: PolicedLake, analyst: AirportClient, subjects: list[str], exceptions: list[str], is_restricted: bool
) -> None:
    policed.filter("id < 0", subjects=subjects, exceptions=exceptions)
    assert (read(analyst) == []) == is_restricted


# --- where policies hold ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["catalog", "namespace", "account"])
def test_policy_on_what_contains_a_table(policed: PolicedLake, analyst: AirportClient, on: str) -> None:
    found: dict[str, list[Any]] = {"catalog": [policed.catalog], "namespace": [policed.namespace], "account": []}
    policed.mask(["*mail", "num*"], objects=[each.resource_id for each in found[on]])
    assert {(row["email"], row["number"]) for row in read(analyst)} == {(None, None)}


def test_tagged_columns_are_masked_even_after_a_rename(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.mask([], tags=["PII"], objects=[])
    assert read(analyst, limit=1)[0]["email"] is not None
    table_id = policed.table.resource_id
    for column in ("Email", "number"):
        request = v1.SetColumnTagsRequest(table_id=table_id, column=column, tags=["pii", "gdpr"])
        policies.set_tags(policed.lake.realm, request)
    before = owner.scan("skiway.snapshots").read_all().to_pylist()[-1]["snapshot_id"]
    owner.rename_column("s.people", "email", "contact")
    analyst.reload()
    assert {row["contact"] for row in read(analyst)} == {None}
    assert {row["email"] for row in read(analyst, at_version=before)} == {None}
    found = policies.get_tags(policed.lake.realm, v1.GetColumnTagsRequest(table_id=table_id)).tags
    assert [(each.name, list(each.tags)) for each in found.columns] == [
        ("contact", ["gdpr", "pii"]),
        ("number", ["gdpr", "pii"]),
    ]
    owner.remove_column("s.people", "contact")
    analyst.reload()
    assert {row["email"] for row in read(analyst, at_version=before)} == {None}
    policies.set_tags(policed.lake.realm, v1.SetColumnTagsRequest(table_id=table_id, column="number", tags=[]))
    assert read(analyst, limit=1)[0]["number"] is not None


def test_rule_for_names_holds_for_the_names_in_older_snapshots(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.mask(["*mail"], objects=[policed.namespace.resource_id])
    before = owner.scan("skiway.snapshots").read_all().to_pylist()[-1]["snapshot_id"]
    owner.rename_column("s.people", "email", "plain")
    analyst.reload()
    assert None not in {row["plain"] for row in read(analyst)}
    assert {row["email"] for row in read(analyst, at_version=before)} == {None}


def test_filter_by_tag_holds_for_tables_with_a_tagged_column(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    owner.create_table_as("s.other", pa.table({"a": [1]}))
    policed.filter("region = 'EU'", objects=[], tags=["pii"])
    assert len(read(analyst)) == ROWS.num_rows
    request = v1.SetColumnTagsRequest(table_id=policed.table.resource_id, column="email", tags=["pii"])
    policies.set_tags(policed.lake.realm, request)
    assert len(read(analyst)) == len(VISIBLE)
    assert read(analyst, "s.other") == [{"a": 1}]


def test_views_read_their_tables_with_the_policies_of_the_caller(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    owner.call(
        "skiway.create_view", "s.v", "SELECT region, count(*) AS n, max(email) AS m FROM people GROUP BY ALL"
    ).read_all()
    policed.filter()
    policed.mask()
    analyst.reload()
    expected = [{"region": "EU", "n": len(VISIBLE), "m": None}]
    assert read(analyst, "s.v") == expected
    assert query(analyst, "SELECT * FROM s.v WHERE n > 1") == expected


def test_policy_on_a_view(policed: PolicedLake, analyst: AirportClient, owner: AirportClient) -> None:
    owner.call("skiway.create_view", "s.v", "SELECT id, region, email AS mail FROM people").read_all()
    owner.call("skiway.create_view", "s.outer", "SELECT count(*) AS n, max(mail) AS m FROM v").read_all()
    view = policed.view("v").resource_id
    policed.filter(objects=[view])
    policed.mask(["mail"], objects=[view])
    analyst.reload()
    for rows in (read(analyst, "s.v"), query(analyst, "SELECT * FROM s.v"), query(analyst, "FROM managed.S.V")):
        assert sorted(row["id"] for row in rows) == VISIBLE
        assert {row["mail"] for row in rows} == {None}
    assert read(analyst, "s.outer") == [{"n": len(VISIBLE), "m": None}]
    owner.reload()
    assert len(read(owner, "s.v")) == ROWS.num_rows


def test_time_travel_and_branches_are_restricted(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.filter()
    policed.mask()
    owner.call("skiway.branch", "s.people", "audit").read_all()
    first = owner.scan("skiway.snapshots").read_all().to_pylist()[0]["snapshot_id"]
    points: list[dict[str, Any]] = [{"at_version": "audit"}, {"at_version": first}, {"at_timestamp": "2100-01-01"}]
    for point in points:
        rows = read(analyst, **point)
        assert rows
        assert {(row["region"], row["email"]) for row in rows} == {("EU", None)}
    rows = query(analyst, "SELECT * FROM s.people AT (VERSION => 'audit')")
    assert {(row["region"], row["email"]) for row in rows} == {("EU", None)}


def test_column_that_an_expression_reads_must_be_the_same_one(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.filter("region = 'EU'")
    before = owner.scan("skiway.snapshots").read_all().to_pylist()[0]["snapshot_id"]
    owner.rename_column("s.people", "region", "old")
    owner.add_column("s.people", pa.field("region", pa.string()))
    analyst.reload()
    assert read(analyst) == []  # the new column is NULL
    with pytest.raises(PermissionDenied, match="column 'region' is another one"):
        read(analyst, at_version=before)


def test_mask_whose_column_is_gone_shows_nothing(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.mask(["email"])
    owner.rename_column("s.people", "email", "contact")
    analyst.reload()
    with pytest.raises(PermissionDenied, match="policy no email masks column 'email', which it does not have"):
        read(analyst)
    with pytest.raises(PermissionDenied, match="policy no email masks column 'email'"):
        query(analyst, "SELECT contact FROM s.people")
    with policed.lake.client(token="editor") as editor, pytest.raises(PermissionDenied, match="is not possible"):
        editor.delete("s.people", [0])


def test_caller_with_grants_only_is_restricted_too(policed: PolicedLake) -> None:
    policed.filter("id < 3")
    request = v1.AddGrantRequest(object_id=policed.table.resource_id, grantee="user:nothing", privilege=v1.PV_WRITE)
    grants.add(policed.lake.realm, request)
    with policed.lake.client(token="nothing") as client:
        assert sorted(row["id"] for row in read(client)) == [0, 1, 2]
        assert read(client, "skiway.files") == []
        with pytest.raises(PermissionDenied, match="policy own region restricts"):
            client.drop_table("s.people")


def test_listing_says_that_masked_columns_may_be_null(policed: PolicedLake) -> None:
    policed.mask(subjects=["user:analyst"])
    for token, nullable in (("analyst", True), ("reader", False), ("analyst", True)):
        with policed.lake.client(token=token) as client:
            assert client.table("s.people").schema.field("email").nullable == nullable


def test_files_of_a_restricted_table_are_not_opened(policed: PolicedLake) -> None:
    policed.mask()
    own = CallerPolicies(lambda: policed.lake.stores, "a1", Subject("analyst"))
    restricted = replace(policed.lake.realm, policies=own)
    handles = Handles(Sources(MemorySecrets()), policed.lake.warehouse)
    with pytest.raises(PermissionDenied, match="its files and statistics are not available"):
        handles.open(restricted, policed.table)
    assert handles.open(restricted.without_policies(), policed.table).current is not None


def test_query_needs_no_second_place_in_the_queue_for_policies(tmp_path: Path) -> None:
    pool = Queries(timeout_s=60, workers=1, wait_s=0.1)
    with policed_lake(tmp_path, QueryEngine(pool)) as policed, policed.lake.client(token="analyst") as analyst:
        policed.filter()
        sql = "SELECT count(*) AS n FROM s.people a JOIN s.people b ON a.id = b.id"
        assert query(analyst, sql) == [{"n": len(VISIBLE)}]
    pool.close()


def test_clients_get_no_files_of_a_restricted_table(policed: PolicedLake, analyst: AirportClient) -> None:
    """Even if none of its columns is hidden now: the files may have others."""
    request = v1.UpdateCatalogRequest(
        catalog_id=policed.catalog.resource_id, spec=v1.CatalogSpec(properties={"scan.mode": "client"})
    )
    request.update_mask.paths.append("properties")
    catalogs.update(policed.lake.realm, request)
    analyst.reload()
    assert any("parquet" in str(each) for each in analyst.endpoints("s.people", columns=["id"]))
    policed.mask(["secret*"], objects=[policed.namespace.resource_id])
    assert not any("parquet" in str(each) for each in analyst.endpoints("s.people", columns=["id"]))
    policed.filter()
    assert not any("parquet" in str(each) for each in analyst.endpoints("s.people", columns=["id"]))


def test_histogram_counts_what_is_visible(policed: PolicedLake, analyst: AirportClient) -> None:
    policed.filter()
    policed.mask()
    numbers = analyst.call("skiway.histogram", "s.people", "number").read_all().to_pylist()
    assert [(each["kind"], each["count"]) for each in numbers] == [("null", len(VISIBLE))]
    regions = analyst.call("skiway.histogram", "s.people", "region").read_all().to_pylist()
    assert [(each["lower"], each["count"]) for each in regions] == [("EU", len(VISIBLE))]


# --- changes ----------------------------------------------------------------------------------------------------------


def test_restricted_caller_changes_rows_only(policed: PolicedLake, owner: AirportClient) -> None:
    policed.mask()
    row = ROWS.slice(0, 1)
    with policed.lake.client(token="editor") as editor:
        editor.insert("s.people", row)
        changes = [
            lambda: editor.insert("s.people", row, returning=True),
            lambda: editor.update("s.people", {"name": "x"}, where=col("id") == 1, returning=True),
            lambda: editor.delete("s.people", where=col("id") == 1, returning=True),
            lambda: editor.update("s.people", {"email": "x"}, where=col("id") == 1),
            lambda: editor.update("s.people", {"name": "x", "number": 1}, where=col("id") == 1),
            lambda: editor.rename_column("s.people", "email", "plain"),
            lambda: editor.remove_column("s.people", "name"),
            lambda: editor.add_column("s.people", pa.field("more", pa.int64())),
            lambda: editor.rename_table("s.people", "plain"),
            lambda: editor.drop_table("s.people"),
            lambda: editor.create_table("s.people", ROWS.schema, on_conflict="replace"),
            lambda: editor.create_table_as("s.people", ROWS, on_conflict="replace"),
            lambda: editor.call("skiway.tag", "s.people", "t").read_all(),
            lambda: editor.call("skiway.rollback_to", "s.people", 1).read_all(),
            lambda: editor.call("skiway.partition_by", "s.people", "region").read_all(),
            lambda: merged(editor),
        ]
        for change in changes:
            with pytest.raises(PermissionDenied, match="policy no email restricts what you see of table people"):
                change()
        editor.create_table_as("s.copy", editor.scan("s.people"))
    assert len(read(owner)) == ROWS.num_rows + 1
    assert {row["email"] for row in read(owner, "s.copy")} == {None}


@pytest.mark.parametrize("mask", [{"kind": v1.MK_HASH}, {"kind": v1.MK_EXPRESSION, "expression": "md5(region)"}])
def test_caller_under_a_mask_cannot_compare_with_values_of_its_choice(
    policed: PolicedLake, owner: AirportClient, mask: dict[str, Any]
) -> None:
    policed.mask(["region"], **mask)
    chosen = ROWS.slice(0, 3)
    unknown = chosen.set_column(1, ROWS.schema.field("region"), pa.nulls(3, pa.string()))
    refused = pytest.raises(PermissionDenied, match="only NULL can be inserted into column 'region'")
    realm, area = _editor(policed), StagingArea(policed.lake.warehouse)
    begun = transactions.begin(realm, v1.BeginTransactionRequest(), area=area).transaction.transaction_id

    def append(rows: pa.Table) -> v1.AppendRowsResponse:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        request = v1.AppendRowsRequest(
            transaction_id=begun, table_id=policed.table.resource_id, rows=sink.getvalue().to_pybytes()
        )
        return transactions.append(realm, [request], area=area)

    with policed.lake.client(token="editor") as editor:
        with refused:
            editor.insert("s.people", chosen)
        with refused, editor.transaction(explicit=True) as t:
            t.insert("s.people", chosen)
        with refused:
            append(chosen)
        with pytest.raises(PermissionDenied, match="restricts what you see"):
            editor.update("s.people", {"region": "EU"}, where=col("id") == 1)
        with pytest.raises(PermissionDenied, match="restricts what you see"):
            merged(editor)
        editor.insert("s.people", unknown)
        editor.insert("s.people", unknown.drop_columns(["region"]))
        append(unknown)
    assert len(read(owner)) == ROWS.num_rows + 6


@pytest.mark.parametrize("hidden", [0, 2])
def test_single_value_under_a_mask_is_refused_beside_nulls(policed: PolicedLake, hidden: int) -> None:
    """In any row, of any message."""
    policed.mask(["region"], v1.MK_HASH)
    realm, area = _editor(policed), StagingArea(policed.lake.warehouse)
    begun = transactions.begin(realm, v1.BeginTransactionRequest(), area=area).transaction.transaction_id

    def message(values: list[str | None]) -> v1.AppendRowsRequest:
        rows = ROWS.slice(0, 3).set_column(1, ROWS.schema.field("region"), pa.array(values, pa.string()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return v1.AppendRowsRequest(
            transaction_id=begun, table_id=policed.table.resource_id, rows=sink.getvalue().to_pybytes()
        )

    refused = pytest.raises(PermissionDenied, match="only NULL can be inserted into column 'region'")
    nulls, values = message([None] * 3), [None if each != hidden else "EU" for each in range(3)]
    for messages in ([message(values)], [nulls, message(values)]):
        with refused:
            transactions.append(realm, messages, area=area)
    rows = ROWS.slice(0, 3).set_column(1, ROWS.schema.field("region"), pa.array(values, pa.string()))
    with policed.lake.client(token="editor") as editor, refused:
        editor.insert("s.people", rows)


def test_values_are_refused_under_a_mask_of_a_tag(policed: PolicedLake) -> None:
    policed.mask([], v1.MK_HASH, tags=["pii"], objects=[])
    request = v1.SetColumnTagsRequest(table_id=policed.table.resource_id, column="region", tags=["pii"])
    policies.set_tags(policed.lake.realm, request)
    realm, area = _editor(policed), StagingArea(policed.lake.warehouse)
    begun = transactions.begin(realm, v1.BeginTransactionRequest(), area=area).transaction.transaction_id
    refused = pytest.raises(PermissionDenied, match="only NULL can be inserted into column 'region'")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    rows = v1.AppendRowsRequest(
        transaction_id=begun, table_id=policed.table.resource_id, rows=sink.getvalue().to_pybytes()
    )
    with refused:
        transactions.append(realm, [rows], area=area)
    with policed.lake.client(token="editor") as editor, refused:
        editor.insert("s.people", ROWS)
    base = load(policed.lake.realm, area.files(), policed.table.resource_id)
    with pytest.raises(PermissionDenied, match="it cannot be created with files"):
        check_fillable(realm, base.table, base.metadata)


def test_values_can_be_inserted_under_a_mask_that_shows_nothing_of_them(
    policed: PolicedLake, owner: AirportClient
) -> None:
    policed.mask(["region"], v1.MK_NULL)
    with policed.lake.client(token="editor") as editor:
        editor.insert("s.people", ROWS.slice(0, 3))
    assert len(read(owner)) == ROWS.num_rows + 3


def test_own_table_does_not_help_to_reverse_a_mask(policed: PolicedLake, owner: AirportClient) -> None:
    policed.mask(["region"], v1.MK_HASH, objects=[policed.catalog.resource_id])
    chosen = pa.table({"region": ["EU", "US"]})
    refused = pytest.raises(PermissionDenied, match="policy no email restricts")
    with policed.lake.client(token="editor") as editor:
        with refused:
            editor.create_table_as("s.mine", chosen)
        editor.create_table("s.mine", chosen.schema)
        with refused:
            editor.insert("s.mine", chosen)
        editor.create_table_as("s.plain", chosen.rename_columns(["plain"]))
        with refused:
            editor.rename_column("s.plain", "plain", "region")
        with refused:
            editor.create_table_as("s.plain", chosen, on_conflict="replace")
        assert read(editor, "s.mine") == []
    owner.insert("s.mine", chosen)
    assert len(read(owner, "s.mine")) == 2


def test_table_cannot_be_moved_to_where_a_mask_shows_hashes(policed: PolicedLake, owner: AirportClient) -> None:
    owner.create_schema("covered")
    source = policed.namespace
    covered = next(
        each
        for each in namespaces.scan(policed.lake.realm, policed.catalog.resource_id.id)
        if each.display_name == "covered"
    )
    policed.mask(["region"], v1.MK_HASH, objects=[covered.resource_id])
    with policed.lake.client(token="editor") as editor:
        editor.create_table_as("s.mine", pa.table({"region": ["EU"]}))
    mine = tables.find(policed.lake.realm, source.resource_id.id, "mine")
    assert mine is not None
    move = v1.UpdateTableRequest(
        table_id=mine.resource_id,
        spec=v1.TableSpec(namespace_id=covered.resource_id),
        update_mask=FieldMask(paths=["namespace_id"]),
    )
    with pytest.raises(PermissionDenied, match="policy no email restricts what you see of table mine"):
        tables.update(_editor(policed), move)
    assert tables.update(policed.lake.realm, move).table.namespace_id == covered.resource_id


def test_caller_who_sees_all_rows_changes_what_it_sees(policed: PolicedLake, owner: AirportClient) -> None:
    policed.mask()
    with policed.lake.client(token="editor") as editor:
        assert editor.update("s.people", {"name": "x"}, where=col("id") < 3).count == 3
        assert editor.update("s.people", {"name": "y"}, where=col("number") == NUMBERS[5]).count == 0
        assert editor.delete("s.people", where=col("id") >= 20).count == 20
        assert editor.delete("s.people", where=col("number") >= NUMBERS[0]).count == 0
        with pytest.raises(Conflict, match="does not belong to the snapshot"):
            editor.delete("s.people", [0])
    expected = [row | {"name": "x"} if row["id"] < 3 else row for row in ROWS.slice(0, 20).to_pylist()]
    assert sorted(read(owner), key=lambda row: int(row["id"])) == expected  # masked columns keep their values


def test_column_that_decides_about_a_mask_cannot_be_changed(policed: PolicedLake, owner: AirportClient) -> None:
    policed.mask(kind=v1.MK_EXPRESSION, columns=["email"], expression="CASE WHEN Region = 'EU' THEN email END")
    with policed.lake.client(token="editor") as editor:
        with pytest.raises(PermissionDenied, match="column 'region' cannot be changed"):
            editor.update("s.people", {"region": "EU"}, where=col("id") == 4)
        owner.rename_column("s.people", "region", "area")  # the editor still knows it as the region
        owner.rename_column("s.people", "name", "region")
        with pytest.raises(PermissionDenied, match="column 'name' cannot be changed"):
            editor.update("s.people", {"name": "EU"}, where=col("id") == 4)


def test_caller_who_does_not_see_all_rows_only_inserts(policed: PolicedLake, owner: AirportClient) -> None:
    policed.filter("id < 20")
    with policed.lake.client(token="editor") as editor:
        editor.insert("s.people", ROWS.slice(30, 1))
        for change in (
            lambda: editor.update("s.people", {"name": "x"}, where=col("id") == 1),
            lambda: editor.delete("s.people", where=col("id") == 1),
            lambda: editor.delete("s.people", [0]),
            lambda: editor.truncate("s.people"),
        ):
            with pytest.raises(PermissionDenied, match="this change is not possible: ask a caller without this policy"):
                change()
        ids = editor.scan("s.people", columns=["rowid"]).read_all()["rowid"].to_pylist()
    assert sorted(ids) == list(range(20)), "positions in files would tell how many rows are hidden"
    assert len(read(owner)) == ROWS.num_rows + 1


def test_restricted_caller_stages_what_it_may_change(policed: PolicedLake, owner: AirportClient) -> None:
    policed.mask()
    row = ROWS.slice(0, 1)
    with policed.lake.client(token="editor") as editor, editor.transaction(explicit=True) as t:
        editor.insert("s.people", row)
        assert editor.update("s.people", {"name": "x"}, where=col("id") < 3).count == 4
        assert editor.update("s.people", {"name": "y"}, where=col("number") == NUMBERS[5]).count == 0
        assert editor.delete("s.people", where=col("id") >= 20).count == 20
        seen = editor.scan("s.people").read_all()
        assert (seen.num_rows, seen["email"].null_count) == (21, 21)
        for change in (
            lambda: editor.insert("s.people", row, returning=True),
            lambda: editor.update("s.people", {"name": "x"}, returning=True),
            lambda: editor.delete("s.people", where=col("id") == 1, returning=True),
            lambda: editor.update("s.people", {"email": "x"}),
        ):
            with pytest.raises(PermissionDenied, match="policy no email restricts what you see of table people"):
                change()
        assert len(read(owner)) == ROWS.num_rows
        shown = transactions.get(_editor(policed), v1.GetTransactionRequest(transaction_id=t.id)).transaction
    assert [each.row_count for each in shown.writes] == [1, 4, 20]
    assert ".parquet" not in str(shown), "files have the original rows"
    before = ROWS.slice(0, 20).to_pylist()
    expected = [each | {"name": "x"} if each["id"] < 3 else each for each in [before[0], *before]]
    assert sorted(read(owner), key=lambda row: int(row["id"])) == expected  # masked columns keep their values


def _editor(policed: PolicedLake) -> Realm:
    """The metastore as the caller `editor` sees it."""
    realm = policed.lake.realm
    restricted = CallerPolicies(lambda: realm.stores, "a1", Subject("editor"))
    return replace(realm, caller="editor", policies=restricted)


def test_caller_who_does_not_see_all_rows_only_stages_inserts(policed: PolicedLake, owner: AirportClient) -> None:
    policed.filter("id < 20")
    with policed.lake.client(token="editor") as editor, editor.transaction() as t:
        t.insert("s.people", ROWS.slice(5, 1))
        t.insert("s.people", ROWS.slice(30, 1))
        for change in (
            lambda: t.update("s.people", {"name": "x"}, where=col("id") == 1),
            lambda: t.delete("s.people", where=col("id") == 1),
            lambda: t.delete("s.people", [0]),
        ):
            with pytest.raises(PermissionDenied, match="this change is not possible: ask a caller without this policy"):
                change()
        assert t.scan("s.people").read_all().num_rows == 21
    assert len(read(owner)) == ROWS.num_rows + 2


def test_restricted_caller_inserts_over_grpc_but_replaces_nothing(policed: PolicedLake, owner: AirportClient) -> None:
    policed.filter("id < 20")
    realm, area, table = _editor(policed), StagingArea(policed.lake.warehouse), policed.table.resource_id
    begun = transactions.begin(realm, v1.BeginTransactionRequest(), area=area).transaction.transaction_id
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS.slice(30, 2))
    rows = v1.AppendRowsRequest(transaction_id=begun, table_id=table, rows=sink.getvalue().to_pybytes())
    assert transactions.append(realm, [rows], area=area).row_count == 2
    replacing = v1.CommitTransactionRequest(transaction_id=begun, replaced_table_ids=[table])
    with pytest.raises(PermissionDenied, match="policy own region restricts"):
        transactions.commit(realm, replacing, area=area)
    done = transactions.commit(realm, v1.CommitTransactionRequest(transaction_id=begun), area=area).transaction
    assert ".parquet" not in str(done)
    assert len(read(owner)) == ROWS.num_rows + 2


def test_mask_that_is_newer_than_a_staged_change_prevents_its_commit(
    policed: PolicedLake, owner: AirportClient
) -> None:
    with policed.lake.client(token="editor") as editor:
        refused = pytest.raises(PermissionDenied, match="it was created or changed after this transaction")
        with refused, editor.transaction() as t:
            t.update("s.people", {"email": "x"}, where=col("id") > 10)
            policed.mask()
        assert editor.transaction_status(t.id) == "aborted"
        with editor.transaction() as t:  # an older one does not
            t.update("s.people", {"name": "x"}, where=col("id") > 10)
        with refused, editor.transaction() as t:  # one more does
            t.update("s.people", {"region": "x"}, where=col("id") > 10)
            policed.mask(["region"], name="no region")
    assert sorted(row["email"] for row in read(owner)) == sorted(ROWS["email"].to_pylist())
    assert sorted(row["region"] for row in read(owner)) == sorted(ROWS["region"].to_pylist())


def test_filter_that_is_newer_than_a_staged_change_prevents_its_commit(
    policed: PolicedLake, owner: AirportClient
) -> None:
    with policed.lake.client(token="editor") as editor:
        with pytest.raises(PermissionDenied, match="this change is not possible"), editor.transaction() as t:  # noqa: PT012
            t.delete("s.people", where=col("id") > 10)
            policed.filter("id < 20")
        assert editor.transaction_status(t.id) == "aborted"
    assert len(read(owner)) == ROWS.num_rows


def test_policy_that_cannot_be_applied_any_more_prevents_the_commit_of_a_change(
    policed: PolicedLake, owner: AirportClient
) -> None:
    policed.mask(["email"], v1.MK_HASH)
    policed.mask(["e*"], v1.MK_NULL, name="strictest")  # it masks the column under both names
    with policed.lake.client(token="editor") as editor:
        with pytest.raises(PermissionDenied, match="this change is not possible"), editor.transaction() as t:  # noqa: PT012
            t.update("s.people", {"name": "x"}, where=col("id") > 10)
            owner.rename_column("s.people", "email", "email2")
        assert editor.transaction_status(t.id) == "aborted"
    assert "x" not in {row["name"] for row in read(owner)}


def test_error_of_a_change_does_not_name_files(policed: PolicedLake, owner: AirportClient) -> None:
    policed.mask()
    with policed.lake.client(token="editor") as editor:
        first = min(editor.scan("s.people", columns=["rowid"], where=col("id") < 10).read_all()["rowid"].to_pylist())
        deleted = _delete_first_file(owner)
        with pytest.raises(PreconditionFailed, match="table people cannot be read") as error:
            editor.delete("s.people", [first])
    assert deleted not in str(error.value)


def merged(client: AirportClient) -> None:
    named = {"clauses": "WHEN MATCHED THEN DELETE"}
    client.call("skiway.merge", "s.people", "SELECT 1 AS id", "target.id = source.id", named=named).read_all()


def test_policies_and_tags_survive_a_drop(policed: PolicedLake, analyst: AirportClient, owner: AirportClient) -> None:
    policed.filter()
    policed.mask([], tags=["pii"], objects=[])
    request = v1.SetColumnTagsRequest(table_id=policed.table.resource_id, column="email", tags=["pii"])
    policies.set_tags(policed.lake.realm, request)
    owner.drop_table("s.people")
    owner.call("skiway.undrop", "s.people").read_all()
    analyst.reload()
    assert {(row["region"], row["email"]) for row in read(analyst)} == {("EU", None)}


def test_restricted_caller_can_fill_its_own_table_in_a_restricted_namespace(
    policed: PolicedLake, owner: AirportClient
) -> None:
    policed.mask(["secret*"], objects=[policed.namespace.resource_id])
    with policed.lake.client(token="editor") as editor:
        editor.create_table("s.mine", pa.schema({"a": pa.int64()}))
        editor.insert("s.mine", pa.table({"a": [1]}))
        assert read(editor, "s.mine") == [{"a": 1}]
        for change in (
            lambda: editor.drop_table("s.mine"),
            lambda: editor.drop_schema("s"),
        ):
            with pytest.raises(PermissionDenied, match="policy no email restricts"):
                change()


# --- what else could tell ---------------------------------------------------------------------------------------------


def test_statistics_tell_nothing_about_hidden_values(policed: PolicedLake, analyst: AirportClient) -> None:
    assert analyst.statistics("s.people", "number").min == NUMBERS[0]
    policed.mask()
    analyst.reload()
    for column in ("number", "email"):
        found = analyst.statistics("s.people", column)
        assert (found.distinct_count, CANARY in str(found), str(NUMBERS[0]) in str(found)) == (None, False, False)
    assert analyst.statistics("s.people", "id").max == ROWS.num_rows - 1
    policed.filter()
    analyst.reload()
    assert analyst.statistics("s.people", "id").max != ROWS.num_rows - 1


def test_history_of_statistics_shows_columns_that_are_not_masked(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    owner.add_column("s.people", pa.field("tags", pa.list_(pa.string())))
    owner.insert("s.people", ROWS.slice(0, 1).append_column("tags", pa.array([["x"]])))
    element = next(number for number, name in field_names(policed.table.schema_json).items() if name == "tags.element")
    columns = [
        v1.ColumnStats(column_id=number, column_name=name, value_count=9, properties={"top_values": '[["x", 9]]'})
        for name, number in (("id", 1), ("email", 4), ("tags.element", element))
    ]
    [table] = read(owner, "skiway.tables")
    stats = v1.TableStats(table_id=v1.ResourceId(id=table["table_id"]), snapshot_id=table["current_snapshot_id"])
    statistics.add_to_history(policed.lake.realm, stats, columns)

    def shown(client: AirportClient) -> list[tuple[str, Any]]:
        return [(each["column_name"], each["top_values"]) for each in read(client, "skiway.column_history")]

    top = [{"value": "x", "count": 9}]
    assert shown(owner) == shown(analyst) == [(each.column_name, top) for each in columns]
    policed.mask(["tags"], name="no tags")
    assert shown(analyst) == [("id", top), ("email", top)]
    policed.mask()
    assert shown(analyst) == [("id", top)]
    assert len(shown(owner)) == 3
    policed.filter()
    assert shown(analyst) == []


def test_system_tables_tell_nothing_about_hidden_rows(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    owner.scan("s.people", where=col("name") == f"{CANARY} hidden 4").read_all()
    policed.filter()
    policed.mask()
    analyst.scan("s.people", where=col("name") == f"{CANARY} hidden 4").read_all()
    assert {table["row_count"] for table in read(owner, "skiway.tables")} == {ROWS.num_rows}
    (table,) = read(analyst, "skiway.tables")
    assert (table["table_name"], table["row_count"], table["file_count"], table["size_bytes"]) == (
        "people",
        *[None] * 3,
    )
    assert read(owner, "skiway.files")
    assert not read(analyst, "skiway.files")
    assert not read(analyst, "skiway.column_stats")
    assert read(owner, "skiway.partitions")
    assert not read(analyst, "skiway.partitions")
    assert {tuple(each["summary"]) for each in read(analyst, "skiway.snapshots")} == {(("operation", "append"),)}
    (plan,) = read(analyst, "skiway.plans")
    assert plan["subject"] == "analyst"
    assert {plan[name] for name in plan if name.startswith(("files", "bytes", "endpoints"))} == {None}
    assert {usage["bytes_read"] for usage in read(analyst, "skiway.usage")} == {None}
    assert {usage["bytes_read"] for usage in read(owner, "skiway.usage")} != {None}
    add_report(policed.lake.realm, policed.table.resource_id.id, MetricsReport("scan", "analyst"))
    assert read(owner, "skiway.reports")
    assert not read(analyst, "skiway.reports")
    assert len(read(analyst, "skiway.columns")) == len(ROWS.schema)


def test_number_of_endpoints_does_not_depend_on_hidden_rows(policed: PolicedLake, analyst: AirportClient) -> None:
    policed.filter()
    conditions = [None, col("id") == 4, col("id") == 5, col("id") == 1_000_000, col("name") == f"{CANARY} hidden 4"]
    assert {len(analyst.endpoints("s.people", where=each)) for each in conditions} == {1}


PROBES = [
    "SELECT count(*) FROM s.people",
    "SELECT id FROM s.people WHERE 1 // (id - 4) = 7",
    "SELECT id FROM s.people WHERE CAST(name AS INTEGER) = 1 AND name LIKE 'canary%'",
    "SELECT CAST(substr(name, 6) AS INTEGER) AS n FROM s.people",
    "SELECT error(name) FROM s.people WHERE region = 'US'",
    "SELECT CASE WHEN region = 'US' THEN error(name) END AS e FROM s.people",
    "SELECT sqrt(CASE WHEN id % 4 = 0 THEN -1 ELSE 1 END) AS r FROM s.people",
    "SELECT id FROM s.people WHERE id = 4 LIMIT 1",
    "SELECT count(*) AS n FROM s.people WHERE name LIKE '%hidden%'",
    "SELECT max(id % 4 = 0) AS hidden FROM s.people",
    "SELECT count(*) FILTER (WHERE region <> 'EU') AS n FROM s.people",
]


@pytest.mark.parametrize("sql", PROBES)
def test_rows_that_a_filter_hides_cannot_be_probed(filtered: PolicedLake, sql: str) -> None:
    """The result is that of DuckDB on a table without the hidden rows."""
    peer = duckdb.connect()
    peer.register("people", ROWS)
    peer.execute("CREATE SCHEMA s; CREATE TABLE s.people AS SELECT * FROM people WHERE region = 'EU'")
    with filtered.lake.client(token="analyst") as analyst:
        try:
            expected: Any = peer.execute(sql).to_arrow_table().to_pylist()
        except duckdb.Error:
            with pytest.raises(InvalidArgument) as raised:
                query(analyst, sql)
            assert CANARY not in str(raised.value)
        else:
            assert sorted(map(str, query(analyst, sql))) == sorted(map(str, expected))


def test_condition_on_a_visible_column_prunes_files(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.mask()
    _delete_first_file(owner)
    assert sorted(row["id"] for row in read(analyst, where=col("id") >= 35)) == [35, 36, 37, 38, 39]
    assert query(analyst, "SELECT count(*) AS n FROM s.people WHERE id >= 35") == [{"n": 5}]
    both = (col("id") >= 35) & (col("number") == NUMBERS[35])
    assert read(analyst, where=both) == []


@pytest.mark.parametrize(
    ("hide", "where"),
    [
        (lambda policed: policed.filter(), col("id") >= 35),
        (lambda policed: policed.mask(), col("number") >= NUMBERS[35]),
        (lambda policed: policed.mask(kind=v1.MK_EXPRESSION, columns=["name"], expression="'x'"), col("id") >= 35),
    ],
    ids=["row filter", "masked column", "mask that may fail"],
)
def test_other_conditions_read_all_files(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient, hide: Any, where: Any
) -> None:
    """Otherwise, the time that a scan takes would tell about hidden rows and values."""
    hide(policed)
    deleted = _delete_first_file(owner)
    with pytest.raises(PreconditionFailed, match="table people cannot be read") as error:
        read(analyst, where=where)
    assert deleted not in str(error.value)  # names of files may contain values
    assert len(read(owner, where=col("id") >= 35)) == 5


def _delete_first_file(owner: AirportClient) -> str:
    """Delete the file with the rows from 0 to 9, so that a scan fails if it reads the file, and return its name."""
    files = owner.scan("skiway.files", where=col("table_name") == "people").read_all().to_pylist()
    first = min(files, key=lambda each: int(each["sequence_number"]))
    path = Path(first["path"].removeprefix("file://"))
    path.unlink()
    return path.name


def test_error_of_a_policy_does_not_quote_values(
    policed: PolicedLake, analyst: AirportClient, caplog: pytest.LogCaptureFixture
) -> None:
    policed.filter("CAST(email AS INTEGER) > 1")
    with pytest.raises(
        PermissionDenied, match="table people cannot be read, because its policies cannot be applied"
    ) as e:
        read(analyst)
    assert CANARY not in str(e.value)
    with pytest.raises(PermissionDenied) as e:
        query(analyst, "SELECT count(*) FROM s.people")
    assert CANARY not in str(e.value)


def test_ticket_from_before_a_policy_reads_what_the_policy_leaves(policed: PolicedLake, analyst: AirportClient) -> None:
    scan = analyst.bind("s.people", columns=["id", "region"])
    endpoints = scan.endpoints()
    policed.filter()
    rows = [row for batch in scan._batches(endpoints) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == VISIBLE


def test_damaged_policy_lets_nobody_read(policed: PolicedLake, analyst: AirportClient, owner: AirportClient) -> None:
    policy, stores = policed.filter("id < 5"), policed.lake.stores
    key = keys.policy("a1", policy.resource_id.id)
    pointer = stores.pointers.get(key)
    assert pointer is not None
    damaged = stores.blobs.put(b"no policy", folder=keys.folder(key), suffix=".pb")
    stores.pointers.apply([Put(key, damaged, expect=pointer.version)])
    for client in (analyst, owner):
        with pytest.raises(PermissionDenied, match=r"table people cannot be read.*policy .* is damaged"):
            read(client)
        client.reload()
        assert read(client, "skiway.files") == []
    policies.calls(lambda *_: []).delete(policed.lake.realm, v1.DeletePolicyRequest(policy_id=policy.resource_id))
    assert len(read(analyst)) == ROWS.num_rows


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"row_filter": v1.PolicyFilter(predicate="nothing = 1")}, "nothing"),
        ({"row_filter": v1.PolicyFilter(predicate="region = ")}, "cannot be used in policy"),
        ({"row_filter": v1.PolicyFilter(predicate="(SELECT true)")}, "a query cannot be used here"),
        ({"row_filter": v1.PolicyFilter(predicate="count(*) > 1")}, "function count_star cannot be used here"),
        ({"row_filter": v1.PolicyFilter(predicate="true) OR (true")}, "syntax error"),
        ({"row_filter": v1.PolicyFilter(predicate="true; DROP TABLE x")}, "expected one expression|DROP"),
        (
            {"row_filter": v1.PolicyFilter(predicate="current_setting('threads') = '1'")},
            "current_setting cannot be used",
        ),
        ({"row_filter": v1.PolicyFilter(predicate="caller(name) = '1'")}, "caller needs the name of a claim"),
        ({"row_filter": v1.PolicyFilter(predicate="day + 'x' = 3")}, "cannot be used in policy"),
        ({"row_filter": v1.PolicyFilter(predicate=" ")}, "row_filter.predicate is blank"),
        ({"row_filter": v1.PolicyFilter(predicate="id = 1"), "objects": []}, "needs objects or tags"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["nothing"])}, "'nothing', which matches no column"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL)}, "name columns or tags"),
        ({"mask": v1.PolicyMask(kind=v1.MK_EXPRESSION, columns=["email"])}, "mask.expression"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["email"], expression="1")}, "mask.expression"),
        ({"mask": v1.PolicyMask(kind=v1.MK_EXPRESSION, columns=["email"], expression="sum(id)")}, "function sum"),
        (
            {"mask": v1.PolicyMask(kind=v1.MK_EXPRESSION, columns=["day"], expression="nofunc(day)")},
            "cannot be used in policy",
        ),
        ({"mask": v1.PolicyMask(columns=["email"])}, "mask.kind is 0"),
        ({}, "give a row filter or a mask"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]), "subjects": []}, "subjects is empty"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]), "subjects": ["ada"]}, "subjects is 'ada'"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]), "exceptions": ["everyone"]}, "exceptions is"),
        ({"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]), "tags": ["no tag"]}, "tags is 'no tag'"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_policy_that_cannot_work_is_refused(filtered: PolicedLake, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        filtered.policy("p", **given)


def test_policy_on_an_object_that_does_not_exist_is_refused(filtered: PolicedLake) -> None:
    with pytest.raises(NotFound):
        filtered.mask(objects=[v1.ResourceId(id="nothing", kind=v1.RK_TABLE)])


def test_system_table_lists_policies_for_those_who_manage_them(
    policed: PolicedLake, analyst: AirportClient, owner: AirportClient
) -> None:
    policed.filter("region = 'EU'")
    policed.mask(["email"], v1.MK_HASH)
    found = {row["policy_name"]: row for row in read(owner, "skiway.policies")}
    assert found.keys() == {"own region", "no email"}
    shown = [found["own region"][name] for name in ("rule", "expression", "columns", "subjects", "exceptions")]
    assert shown == ["filter", "region = 'EU'", None, ["everyone"], ["user:writer"]]
    assert [found["no email"][name] for name in ("rule", "expression", "columns")] == ["mask hash", None, ["email"]]
    assert found["no email"]["object_ids"] == [policed.table.resource_id.id]
    assert read(analyst, "skiway.policies") == []
