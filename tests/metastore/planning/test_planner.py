"""Planning: files are pruned only on proof, and tasks are balanced."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastore.resource_factory import behavior
from skiway.formats import open_source
from skiway.metastore.planning.planner import FileFacts, plan
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.file_table import stored_files
from skiway.model import v1

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)


def column(name: str = "x", of: str = "INT", **stats: Any) -> v1.ColumnStats:
    return v1.ColumnStats(column_id=stats.pop("id", 1), column_name=name, logical_type=of, **stats)


def file(path: str, *columns: v1.ColumnStats, **more: Any) -> v1.FileColumnStats:
    more = {"file_content": v1.FC_DATA, "row_count": 10, "size_bytes": 100, **more}
    return v1.FileColumnStats(file_path=path, file_format="PARQUET", columns=columns, **more)


def facts(*files: v1.FileColumnStats, spec: v1.PartitionSpecInfo | None = None) -> FileFacts:
    return FileFacts(file_table.rows(files, {}), spec)


def predicate(op: Any, *values: str, column: str = "x") -> v1.Predicate:
    return v1.Predicate(column=column, op=op, values=values)


def remaining_files(found: FileFacts, *predicates: v1.Predicate) -> list[str]:
    return [found.files["file_path"][int(place)].as_py() for place in plan(found, predicates).data]


TENS = [
    file(name, column(min=low, max=high, null_count=0))
    for name, low, high in (("a", "1", "9"), ("b", "10", "19"), ("c", "20", "20"))
]


@behavior(55)
@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        (v1.PO_EQ, ["9"], "a"),
        (v1.PO_EQ, ["10"], "b"),
        (v1.PO_EQ, ["100"], ""),
        (v1.PO_EQ, ["-1"], ""),
        (v1.PO_NEQ, ["20"], "ab"),
        (v1.PO_NEQ, ["5"], "abc"),
        (v1.PO_LT, ["10"], "a"),
        (v1.PO_LT, ["1"], ""),
        (v1.PO_LTE, ["10"], "ab"),
        (v1.PO_LTE, ["1"], "a"),
        (v1.PO_GT, ["19"], "c"),
        (v1.PO_GT, ["9"], "bc"),
        (v1.PO_GTE, ["19"], "bc"),
        (v1.PO_GTE, ["21"], ""),
        (v1.PO_BETWEEN, ["5", "12"], "ab"),
        (v1.PO_BETWEEN, ["12", "5"], "ab"),
        (v1.PO_BETWEEN, ["21", "30"], ""),
        (v1.PO_IN, ["3", "20"], "ac"),
        (v1.PO_IN, ["30", "0"], ""),
        (v1.PO_IN, [str(number) for number in range(100, 200)], ""),
        (v1.PO_IN, [str(number) for number in range(15, 200)], "bc"),
        (v1.PO_IS_NULL, [], ""),
        (v1.PO_IS_NOT_NULL, [], "abc"),
    ],
)
def test_every_operator_keeps_and_prunes_files(op, values, expected):
    assert remaining_files(facts(*TENS), predicate(op, *values)) == list(expected)


def test_files_of_unknown_size_count_as_empty():
    files = file_table.rows([file("a"), file("b")], {})
    place = files.schema.get_field_index("size_bytes")
    found = FileFacts(files.set_column(place, "size_bytes", pa.array([None, 100], pa.int64())))
    assert plan(found, []).bytes == 100


def test_decimals_are_compared_up_to_the_last_digit():
    small, large = f"0.{'0' * 37}1", f"{'9' * 38}"
    of_fractions = facts(file("a", column(of="DECIMAL(38,38)", min=small, max=small, null_count=0)))
    assert remaining_files(of_fractions, predicate(v1.PO_EQ, small)) == ["a"]
    assert remaining_files(of_fractions, predicate(v1.PO_GT, small)) == []
    of_numbers = facts(file("a", column(of="DECIMAL(38,0)", min=large, max=large, null_count=0)))
    assert remaining_files(of_numbers, predicate(v1.PO_EQ, large)) == ["a"]
    assert remaining_files(of_numbers, predicate(v1.PO_LT, large)) == []


def test_one_invalid_bound_does_not_affect_the_bounds_of_other_files():
    broken = [file("broken", column(min="one", max="9", null_count=0)), *TENS]
    assert remaining_files(facts(*broken), predicate(v1.PO_EQ, "10")) == ["b"]
    assert remaining_files(facts(*broken), predicate(v1.PO_LT, "5")) == ["broken", "a"]


@behavior(55)
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (predicate(v1.PO_EQ, "ten"), "cannot be compared"),
        (predicate(v1.PO_EQ), "cannot be compared"),
        (predicate(v1.PO_IN), "cannot be compared"),
        (predicate(v1.PO_EQ, "100", "200"), "cannot be compared"),
        (predicate(v1.PO_BETWEEN, "100"), "cannot be compared"),
        (predicate(77, "100"), "unknown operator"),
        (predicate(v1.PO_EQ, "100", column="y"), "no statistics"),
    ],
)
def test_unsupported_predicate_keeps_all_files_and_reports_the_reason(bad, reason):
    found = plan(facts(*TENS), [bad])
    assert len(found.data) == 3
    assert reason in found.pruned[0].unused_because


@behavior(55)
@pytest.mark.parametrize(
    "unknown",
    [
        file("u"),
        file("u", column()),
        file("u", column(min="1")),
        file("u", column(max="1000")),
        file("u", column(of="", min="1", max="1")),
        file("u", column(of="JSON")),
        file("u", column(of="DOUBLE", min="NaN", max="NaN")),
        file("u", column("other", min="1", max="1", id=2)),
    ],
)
def test_file_without_proof_is_kept(unknown):
    assert "u" in remaining_files(facts(unknown), predicate(v1.PO_EQ, "100"))


def test_bounds_of_different_types_prune_nothing():
    mixed = facts(file("a", column(min="1", max="2")), file("b", column(of="STRING", min="1", max="2")))
    assert remaining_files(mixed, predicate(v1.PO_EQ, "9")) == ["a", "b"]


def test_case_of_a_column_name_matters_only_if_it_is_ambiguous():
    one = facts(file("a", column("Amount", min="1", max="2")))
    assert remaining_files(one, predicate(v1.PO_EQ, "9", column="AMOUNT")) == []
    two = facts(file("a", column("x", min="1", max="2"), column("X", min="5", max="9", id=2)))
    assert remaining_files(two, predicate(v1.PO_EQ, "9", column="X")) == ["a"]
    assert remaining_files(two, predicate(v1.PO_EQ, "9", column="x")) == []


def test_known_null_counts_prune_files():
    files = facts(
        file("none", column(null_count=0)),
        file("all", column(null_count=10)),
        file("some", column(null_count=4)),
        file("unknown", column()),
    )
    assert remaining_files(files, predicate(v1.PO_IS_NULL)) == ["all", "some", "unknown"]
    assert remaining_files(files, predicate(v1.PO_IS_NOT_NULL)) == ["none", "some", "unknown"]
    assert remaining_files(files, predicate(v1.PO_GT, "5")) == ["none", "some", "unknown"]
    assert remaining_files(
        facts(file("uncounted", column(null_count=0), row_count=0)), predicate(v1.PO_IS_NOT_NULL)
    ) == ["uncounted"]


def test_nan_is_greater_than_all_numbers():
    def floats(name: str, **more: Any) -> v1.FileColumnStats:
        return file(name, column(of="DOUBLE", min="1.0", max="2.0", value_count=10, **more))

    files = facts(floats("nan", nan_count=1), floats("plain", nan_count=0), floats("unknown"))
    assert remaining_files(files, predicate(v1.PO_GT, "5")) == ["nan", "unknown"]
    assert remaining_files(files, predicate(v1.PO_GTE, "5")) == ["nan", "unknown"]
    assert remaining_files(files, predicate(v1.PO_LT, "0")) == []
    same = facts(file("nan", column(of="DOUBLE", min="1.0", max="1.0", nan_count=1)))
    assert remaining_files(same, predicate(v1.PO_NEQ, "1")) == ["nan"]
    assert remaining_files(files, predicate(v1.PO_EQ, "NaN")) == ["nan", "plain", "unknown"]


def test_float_is_compared_both_as_float_and_as_written():
    low = str(float(pa.scalar(0.1, pa.float32()).as_py()))
    assert remaining_files(
        facts(file("a", column(of="FLOAT", min=low, max=low, nan_count=0))), predicate(v1.PO_EQ, "0.1")
    ) == ["a"]


def test_literal_more_precise_than_the_column_is_not_rounded():
    at = file("a", column(of="TIMESTAMP(3)", min="2026-01-01T00:00:00.123", max="2026-01-01T00:00:00.123"))
    assert remaining_files(facts(at), predicate(v1.PO_LT, "2026-01-01T00:00:00.123456")) == ["a"]


def test_partition_values_prune_files_without_statistics():
    spec = v1.PartitionSpecInfo(
        spec_id=3,
        fields=[
            v1.PartitionField(field_id=1, name="day", transform="identity"),
            v1.PartitionField(field_id=2, name="bucketed", transform="bucket[4]"),
        ],
    )

    def part(name: str, json: str, spec_id: int = 3) -> v1.FileColumnStats:
        columns = column("day", "DATE"), column("bucketed", id=2)
        return file(name, *columns, partition_data_json=json, partition_spec_id=spec_id)

    files = facts(
        part("a", '{"day": "2026-01-01", "bucketed": "1"}'),
        part("b", '{"day": "2026-01-02", "bucketed": "1"}'),
        part("null", '{"day": null}'),
        part("older", '{"day": "2026-01-01"}', spec_id=1),
        part("garbage", "]"),
        spec=spec,
    )
    assert remaining_files(files, predicate(v1.PO_EQ, "2026-01-02", column="day")) == ["b", "null", "older", "garbage"]
    assert len(remaining_files(files, predicate(v1.PO_EQ, "7", column="bucketed"))) == 5


def test_report_lists_what_each_predicate_pruned():
    found = plan(facts(*TENS), [predicate(v1.PO_GT, "9"), predicate(v1.PO_LT, "20"), predicate(v1.PO_EQ, "x")])
    assert [each.removed for each in found.pruned] == [1, 1, 0]
    assert found.bytes == 100


@settings(max_examples=max(25, settings.default.max_examples // 4), deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(0, 40))
def test_tasks_are_balanced(sizes, tasks):
    found = plan(facts(*(file(f"{number:04d}", size_bytes=size) for number, size in enumerate(sizes))), tasks=tasks)
    total, count = sum(sizes), min(tasks, len(sizes)) or 1
    assert list(found.tasks) == sorted(found.tasks)
    if tasks:
        assert found.tasks.max() < count
        by_task = [int(found.facts.sizes[found.tasks == task].sum()) for task in range(count)]
        assert max(by_task) <= total / count + max(sizes) + 1


def test_file_belongs_to_the_task_of_its_middle():
    found = plan(facts(*(file(f"{number}", size_bytes=size) for number, size in enumerate([5, 3, 6]))), tasks=2)
    assert list(found.tasks) == [0, 0, 1]


def test_empty_table_can_be_planned():
    found = plan(facts(), [predicate(v1.PO_EQ, "1")])
    assert (len(found.data), len(found.deletes), len(found.tasks)) == (0, 0, 0)


# --- compared with DuckDB ---------------------------------------------------------------------------------------------

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int32(), st.integers(-50, 50)),
    "u": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "d": (pa.float64(), st.sampled_from([-1.5, 0.0, -0.0, 0.1, 2.0, float("inf"), float("-inf"), float("nan")])),
    "f": (pa.float32(), st.sampled_from([-1.5, 0.0, 0.1, 0.3, 2.0, float("nan")])),
    "s": (pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)),
    "b": (pa.bool_(), st.booleans()),
    "m": (pa.decimal128(9, 2), st.decimals(-100, 100, places=2)),
    "t": (pa.date32(), st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 3, 1))),
    "z": (
        pa.timestamp("us", tz="UTC"),
        st.datetimes(NOW, NOW + datetime.timedelta(seconds=2)).map(lambda at: at.replace(tzinfo=datetime.UTC)),
    ),
    "n": (pa.timestamp("us"), st.datetimes(NOW, NOW + datetime.timedelta(seconds=2))),
}
SQL = {v1.PO_EQ: "=", v1.PO_NEQ: "<>", v1.PO_LT: "<", v1.PO_LTE: "<=", v1.PO_GT: ">", v1.PO_GTE: ">="}


def text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return (
        value.isoformat()
        if isinstance(value, datetime.date)
        else format(value, "f")
        if isinstance(value, Decimal)
        else str(value)
    )


@st.composite
def cases(draw: Any) -> tuple[str, list[list[Any]], v1.Predicate, str, list[str]]:
    name = draw(st.sampled_from(sorted(TYPES)))
    of, values = TYPES[name]
    files = draw(st.lists(st.lists(st.none() | values, min_size=1, max_size=4), min_size=1, max_size=5))
    op = draw(st.sampled_from([*SQL, v1.PO_BETWEEN, v1.PO_IN, v1.PO_IS_NULL, v1.PO_IS_NOT_NULL]))
    count = {v1.PO_BETWEEN: 2, v1.PO_IN: draw(st.integers(1, 3)), v1.PO_IS_NULL: 0, v1.PO_IS_NOT_NULL: 0}.get(op, 1)
    literals = [text(draw(values)) for _ in range(count)]
    quoted = [f"CAST('{each.replace(chr(39), chr(39) * 2)}' AS {duckdb_type(of)})" for each in literals]
    where = {
        v1.PO_BETWEEN: lambda: f"{name} BETWEEN least({', '.join(quoted)}) AND greatest({', '.join(quoted)})",
        v1.PO_IN: lambda: f"{name} IN ({', '.join(quoted)})",
        v1.PO_IS_NULL: lambda: f"{name} IS NULL",
        v1.PO_IS_NOT_NULL: lambda: f"{name} IS NOT NULL",
    }.get(op, lambda: f"{name} {SQL[op]} {quoted[0]}")()
    return name, files, v1.Predicate(column=name, op=op, values=literals), where, literals


def duckdb_type(of: pa.DataType) -> str:
    return {
        pa.int32(): "INTEGER",
        pa.uint64(): "UBIGINT",
        pa.float64(): "DOUBLE",
        pa.float32(): "FLOAT",
        pa.string(): "VARCHAR",
        pa.bool_(): "BOOLEAN",
        pa.date32(): "DATE",
        pa.timestamp("us"): "TIMESTAMP",
        pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    }.get(of, "DECIMAL(9,2)")


@behavior(55)
@settings(max_examples=max(100, settings.default.max_examples), deadline=None)
@given(cases())
def test_pruned_file_never_contains_a_matching_row(tmp_path_factory, case):
    name, files, wanted, where, _ = case
    folder = tmp_path_factory.mktemp("table") / "t"
    folder.mkdir()
    for number, values in enumerate(files):
        pq.write_table(pa.table({name: pa.array(values, TYPES[name][0])}), folder / f"{number}.parquet")
    with open_source("parquet", str(folder.parent)) as source:
        handle = source.load((), "t")
        snapshot = handle.current()
        assert snapshot is not None
        stored = stored_files(handle, snapshot, handle.files(snapshot))
    remaining = set(remaining_files(FileFacts(stored), wanted))
    with duckdb.connect() as connection:
        for path in map(str, folder.iterdir()):
            matching = connection.execute(f"SELECT count(*) FROM read_parquet('{path}') WHERE {where}").fetchone()
            assert matching is not None
            assert matching[0] == 0 or path in remaining, (where, files)
