"""Statistics are true, and filters return what a full scan returns, however the columns of a table came to be.

`evolved_tables` makes a table for every place that keeps statistics: profiles, manifests, Delta's log and Parquet footers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

from airport.filters.predicates import Client
from lake.evolved_tables import (
    TABLES,
    Evolved,
    Stage,
    add_catalogs,
    compared_values,
    evolved_table,
    filters,
    iceberg_table,
    leaf_sql,
)
from lake.lakes import Lake, opened_lake
from skiway.airport import filters as pushed
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.formats.readers.scanning import FILE_ORDINAL
from skiway.formats.schemas import leaves
from skiway.metastore import queries as bundled
from skiway.metastore import statistics, tables
from skiway.metastore.planning import scans
from skiway.metastore.planning.planner import Planner
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1
from skiway.sql import QueryEngine

NOW = v1.SnapshotRef(special=v1.SS_CURRENT)


def _params(*few: tuple[str, str]) -> list[Any]:
    """All tables; all but a few are marked `full`."""
    return [
        pytest.param(
            (catalog, stage),
            id=f"{catalog}-{stage.name}",
            marks=() if (catalog, stage.name) in few else pytest.mark.full,
        )
        for catalog, stage in TABLES
    ]


PROFILED = _params(
    ("managed", "profiled_around"),
    ("managed", "changed_again"),
    ("iceberg", "profiled_around"),
    ("delta", "profiled_around"),
    ("managed", "pyiceberg"),
    ("delta", "delta_rs"),
)
FILTERED = _params(("managed", "manifests"), ("managed", "footers"), ("delta", "manifests"), ("iceberg", "pyiceberg"))
SERVED = _params(("managed", "footers"), ("managed", "changed_again"), ("delta", "manifests"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, queries: QueryEngine) -> Iterator[Lake]:
    with opened_lake(tmp_path_factory.mktemp("lake"), queries=queries) as lake:
        add_catalogs(lake)
        yield lake


@pytest.fixture(scope="module", params=PROFILED)
def table(request: pytest.FixtureRequest, lake: Lake) -> Evolved:
    catalog, stage = request.param
    return evolved_table(lake, catalog, stage)


@cache
def _sent(name: str, of: pa.DataType) -> dict[str, pushed.Filter]:
    """The filters that DuckDB pushes down for all conditions on a column and on its fields."""
    fields = [((name, child.name), child.type) for child in of] if pa.types.is_struct(of) else [((name,), of)]
    client = Client("SELECT 1")
    with client.connection:
        client.connection.register("own", pa.schema([pa.field(name, of)]).empty_table())
        client.connection.execute("CREATE TABLE t AS FROM own").fetchall()
        sent = {each: client.sent(each) for path, kind in fields for each in filters(path, kind)}
    return {condition: pushed.parse(each) for condition, each in sent.items() if each is not None}


@pytest.mark.parametrize("table", FILTERED, indirect=True)
def test_filters_leave_files_with_matching_rows(table: Evolved) -> None:
    """No statistics of manifests, logs or footers lead to a file that is left out although it has a matching row."""
    handle = table.handle
    snapshot, schema = handle.current(), handle.schema.arrow
    assert snapshot is not None
    everything = handle.read(snapshot, schema=schema, positions=True).read_all()
    conditions = {condition: sent for field in schema for condition, sent in _sent(field.name, field.type).items()}
    assert len(conditions) > 350
    wrong = []
    for condition, expected in _files_with_matches(everything, conditions).items():
        files = handle.plan(snapshot, conditions[condition], schema=schema)
        parts = handle.matching_parts(snapshot, files, conditions[condition], schema=schema)
        if not expected <= {number for number, part in parts.items() if part.row_groups}:
            wrong.append(condition)
    assert wrong == []


def _files_with_matches(rows: pa.Table, conditions: Iterable[str]) -> dict[str, set[int]]:
    """For each condition, the files with rows for which it is true."""
    with duckdb.connect() as duck:
        duck.register("everything", rows)
        found = duck.execute(f"SELECT {', '.join(conditions)} FROM everything").fetchall()
    files = rows[FILE_ORDINAL].to_pylist()
    return {
        condition: {file for file, row in zip(files, found, strict=True) if row[place]}
        for place, condition in enumerate(conditions)
    }


def _leaves(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """The paths and types of the columns, and of the fields of structs."""
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from (((field.name, child.name), child.type) for child in field.type)
        else:
            yield (field.name,), field.type


@pytest.mark.parametrize("table", SERVED, indirect=True)
def test_queries_on_the_server_return_the_rows_of_a_full_scan(table: Evolved) -> None:
    """DuckDB reads the files on the server, with the statistics of their footers."""
    everything, count, wrong = table.rows(), 0, []
    with duckdb.connect() as duck, table.lake.client(table.catalog) as client:
        duck.register("arrow", everything)
        duck.execute("CREATE TABLE everything AS FROM arrow").fetchall()  # with filters in DuckDB, not in Arrow
        for path, of in _leaves(everything.schema):
            asked = list(filters(path, of))
            count += len(asked)
            sql, expected = (
                " UNION ALL ".join(
                    f"SELECT {number} AS n, id FROM {name} WHERE {condition}" for number, condition in enumerate(asked)
                )
                + " ORDER BY ALL"
                for name in (table.name, "everything")
            )
            found = client.call("skiway.query", sql).read_all()
            if (
                list(zip(*(column.to_pylist() for column in found.columns), strict=True))
                != duck.sql(expected).fetchall()
            ):
                wrong.append(path)
    assert wrong == []
    assert count > 350


_SQL = {"eq": "=", "not-eq": "IS DISTINCT FROM", "lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">="}
_OPERATORS = {
    v1.PO_EQ: "=",
    v1.PO_NEQ: "<>",
    v1.PO_LT: "<",
    v1.PO_LTE: "<=",
    v1.PO_GT: ">",
    v1.PO_GTE: ">=",
}


def _text(value: Any) -> str:
    """A value as scan bundles and Iceberg's JSON have it."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _spelled(value: Any, of: pa.DataType) -> str:
    text = _text(value).replace("'", "''")
    return f"'{text}'::{duckdb_type(pa.field('x', of))}"


@pytest.mark.parametrize("table", [each for each in SERVED if each.values[0][0] != "delta"], indirect=True)
def test_plans_over_rest_leave_files_with_matching_rows(table: Evolved) -> None:
    conditions: dict[str, dict[str, Any]] = {}
    for path, of in _leaves(table.handle.schema.arrow):
        term, column = ".".join(path), leaf_sql(path)
        zone = "+00:00" if pa.types.is_timestamp(of) and of.tz else ""
        values = {
            each: each if isinstance(each, bool | int | float) else _text(each) + zone for each in compared_values(of)
        }
        for value, sent in values.items():
            for kind, operator in _SQL.items():
                conditions[f"{column} {operator} {_spelled(value, of)}"] = {"type": kind, "term": term, "value": sent}
        some = list(values)[1:]
        listed, sent_list = ", ".join(_spelled(each, of) for each in some), [values[each] for each in some]
        conditions[f"{column} IN ({listed})"] = {"type": "in", "term": term, "values": sent_list}
        conditions[f"({column} NOT IN ({listed})) IS NOT FALSE"] = {"type": "not-in", "term": term, "values": sent_list}
        conditions[f"{column} IS NULL"] = {"type": "is-null", "term": term}
        conditions[f"{column} IS NOT NULL"] = {"type": "not-null", "term": term}
    assert len(conditions) > 250
    everything, paths = _with_paths(table)
    wrong = []
    with table.lake.rest_served() as uri, httpx.Client(headers={"authorization": "Bearer writer"}) as http:
        namespace, name = table.name.split(".")
        url = f"{uri}/v1/{table.catalog}/namespaces/{namespace}/tables/{name}/plan"
        for condition, expected in _files_with_matches(everything, conditions).items():
            answer = http.post(url, json={"filter": conditions[condition]})
            assert answer.status_code == 200, (condition, answer.text)
            planned = {each["data-file"]["file-path"] for each in answer.json()["file-scan-tasks"]}
            if not {paths[number] for number in expected} <= planned:
                wrong.append(condition)
    assert wrong == []


def _with_paths(table: Evolved) -> tuple[pa.Table, dict[int, str]]:
    """All rows with the numbers of their files, and the paths of the files."""
    handle = table.handle
    snapshot = handle.current()
    assert snapshot is not None
    files = handle.files(snapshot)
    paths = dict(zip(files["ordinal"].to_pylist(), files["path"].to_pylist(), strict=True))
    return handle.read(snapshot, schema=handle.schema.arrow, positions=True).read_all(), paths


@pytest.mark.parametrize("table", SERVED, indirect=True)
def test_scan_bundles_have_the_files_with_matching_rows(table: Evolved) -> None:
    realm, planner = table.lake.realm, Planner()
    catalog_id = tables.get(realm, v1.GetTableRequest(table_id=table.id)).table.catalog_id
    begin = v1.BeginQueryRequest(
        default_catalog_id=catalog_id, inputs=[v1.QueryInput(table_id=table.id)], ttl_seconds=600
    )
    query_id = bundled.begin(realm, begin).query.query_id
    conditions: dict[str, v1.Predicate] = {}
    for path, of in _leaves(table.handle.schema.arrow):
        name, column = ".".join(path), leaf_sql(path)
        values = compared_values(of)
        zone = "Z" if pa.types.is_timestamp(of) and of.tz else ""
        for value in values:
            for op, operator in _OPERATORS.items():
                text = str(value).lower() if isinstance(value, bool) else _text(value) + zone
                conditions[f"{column} {operator} {_spelled(value, of)}"] = v1.Predicate(
                    column=name, op=op, values=[text]
                )
        conditions[f"{column} IS NULL"] = v1.Predicate(column=name, op=v1.PO_IS_NULL)
        conditions[f"{column} IS NOT NULL"] = v1.Predicate(column=name, op=v1.PO_IS_NOT_NULL)
    assert len(conditions) > 250
    everything, paths = _with_paths(table)
    wrong, removed = [], 0
    for condition, expected in _files_with_matches(everything, conditions).items():
        request = v1.FetchScanBundleRequest(query_id=query_id, table_id=table.id, predicates=[conditions[condition]])
        messages = list(scans.fetch(realm, request, planner=planner))
        planned = {each.file_path for message in messages for each in message.data_files}
        removed += messages[0].report.predicates[0].files_removed
        if not {paths[number] for number in expected} <= planned:
            wrong.append(condition)
    assert wrong == []
    assert removed > 50 or not table.stage.metrics, "predicates are used"


def test_statistics_for_duckdb_are_true(table: Evolved) -> None:
    """DuckDB relies on bounds, and on whether there are NULLs and other values."""
    everything = table.rows()
    wrong = {}
    with table.lake.client(table.catalog) as client:
        for field in everything.schema:
            if pa.types.is_nested(field.type):
                continue
            values = [value for value in everything[field.name].to_pylist() if value is not None]
            found = client.statistics(table.name, field.name)
            is_true = (
                (found.has_null is not False or len(values) == everything.num_rows)
                and (found.has_not_null is not False or not values)
                and (found.min is None or all(_plain(found.min) <= _plain(value) for value in values))
                and (found.max is None or all(_plain(found.max) >= _plain(value) for value in values))
            )
            if not is_true:
                wrong[field.name] = found
    assert wrong == {}


def _plain(value: Any) -> Any:
    return value.bytes if hasattr(value, "bytes") else value


def _columns(table: Evolved) -> dict[str, v1.ColumnStats]:
    found = statistics.list_columns(
        table.lake.realm, v1.ListColumnStatsRequest(table_id=table.id, snapshot=NOW)
    ).columns
    return {each.column_name: each for each in found}


def test_profiles_are_true(table: Evolved) -> None:
    """Figures that are called exact are equal to those of a full scan, and others are bounds."""
    everything, stored = table.rows(), _columns(table)
    known = {".".join(leaf.path): leaf for leaf in leaves(table.handle.schema.arrow)}
    is_current = table.stage.steps[-1] == "profile"
    if table.catalog != "delta":  # in Delta, a change of the schema is a new version, which has no profile yet
        is_current |= table.stage.steps[-2:] == ("profile", "again")
    assert stored.keys() == (known.keys() if is_current else stored.keys() & known.keys())
    wrong = []
    for name, stats in stored.items():
        values: pa.Array = everything[known[name].path[0]].combine_chunks()
        for part in known[name].path[1:]:
            values = values.flatten()[values.type.get_field_index(part)]
        wrong += [f"{name}: {each}" for each in _untrue(stats, values)]
    assert wrong == []


def _untrue(stats: v1.ColumnStats, column: pa.Array) -> Iterator[str]:
    """The figures of a column that are not true."""
    kind = logical_type(stats.logical_type)
    values = [bound(kind, text).value for text in _texts(column)]
    quality = {name.removeprefix("quality."): value for name, value in stats.properties.items()}
    if stats.value_count != len(column):
        yield f"{stats.value_count} values of {len(column)}"
    if stats.HasField("null_count") and stats.null_count != column.null_count:
        yield f"{stats.null_count} NULLs instead of {column.null_count}"
    for name, best in (("min", min), ("max", max)):
        if stats.HasField(name):  # type: ignore[arg-type]
            stored = bound(kind, getattr(stats, name)).value
            expected = best(values) if values else None
            if (
                expected is None
                or best(stored, expected) != stored
                or (quality[name] == "exact" and stored != expected)
            ):
                yield f"{name} is {stored} instead of {expected}"
        elif quality.get("null_count") == "exact" and stats.null_count < stats.value_count and name in quality:
            yield f"no {name}"
    distinct = len(set(values))
    match stats.ndv.WhichOneof("mode"):
        case "exact":
            if stats.ndv.exact != distinct:
                yield f"{stats.ndv.exact} distinct values instead of {distinct}"
        case "approx":
            if not stats.ndv.approx.confidence_lower <= distinct <= stats.ndv.approx.confidence_upper:
                yield f"{stats.ndv.approx} instead of {distinct} distinct values"
    if quality.get("top_values") == "exact":
        top = dict(json.loads(stats.properties["top_values"]))
        if sum(top.values()) != len(values):
            yield f"{top} are not all values"


def _texts(column: pa.Array) -> list[str]:
    """The values in the form of bounds."""
    from skiway.spark_jobs.profile.values import storage_type_of, texts

    plain = column.storage if isinstance(column, pa.ExtensionArray) else column
    return [
        each for each in texts(plain.cast(storage_type_of(column.type)), column.type).to_pylist() if each is not None
    ]


def test_profiles_of_earlier_versions_are_not_used_for_columns_with_a_default(lake: Lake) -> None:
    """They counted NULLs in the files that do not have the column."""
    table = iceberg_table(lake, "managed", Stage("earlier", ("profile", "change", "append", "profile")))
    stats = _columns(table)["default_int"]
    assert (stats.min, stats.max, stats.null_count) == ("40", "77", 1)
    stats.null_count, stats.min = 5, "77"
    del stats.properties[statistics.PROFILE_VERSION]
    request = v1.PutColumnStatsRequest(table_id=table.id, snapshot_id=stats.snapshot_id, columns=[stats])
    statistics.put_columns(lake.realm, [request])
    test_statistics_for_duckdb_are_true(table)
    assert "default_int" not in _columns(table)
    del stats.properties["rows.profiled"]  # as in statistics of another program, which are used
    other = v1.PutColumnStatsRequest(table_id=table.id, snapshot_id=stats.snapshot_id, columns=[stats])
    statistics.put_columns(lake.realm, [other])
    with lake.client("managed") as client:
        assert client.statistics(table.name, "default_int").min == 77
    assert _columns(table)["default_int"].min == "77"
