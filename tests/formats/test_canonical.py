from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from formats.managed import LooseTable
from formats.test_contents import now
from formats.test_file_tables import TABLES
from skiway.formats import TableHandle
from skiway.formats.canonical import canonical_columns, partition_json
from skiway.formats.schemas import leaves
from skiway.metastore.statistics import bounds, file_table


@pytest.mark.parametrize(("kind", "namespace", "name"), TABLES)
def test_text_bounds_denote_the_same_values(
    request: pytest.FixtureRequest, kind: str, namespace: tuple[str, ...], name: str
) -> None:
    table: TableHandle = request.getfixturevalue(kind).load(namespace, name)
    files = table.files(now(table))
    by_id = {leaf.id: leaf for leaf in leaves(table.schema.arrow)}
    canonical = canonical_columns(files, table.schema.arrow)
    for file, columns in zip(files.to_pylist(), canonical.to_pylist(), strict=True):
        assert [each["column_id"] for each in columns] == list(by_id)
        for column in columns:
            stats = file["stats"][str(column["column_id"])]
            assert {key: column[key] for key in ("value_count", "null_count", "nan_count")}.items() <= stats.items()
            of = bounds.logical_type(column["logical_type"])
            for end in ("min", "max"):
                assert (column[end] is None) == (stats[end] is None)
                if column[end] is not None:
                    value = bounds.bound(of, column[end]).value
                    own = stats[end].replace(tzinfo=None) if of.name == "TIMESTAMPTZ" else stats[end]
                    assert value == own, (column, end)


def test_format_is_that_of_the_metastore(request: pytest.FixtureRequest) -> None:
    table: TableHandle = request.getfixturevalue("parquet").load((), "plain")
    canonical = canonical_columns(table.files(now(table)), table.schema.arrow)
    expected = {field.name: field.type for field in file_table.COLUMN}
    expected.pop("rest")
    assert {field.name: field.type for field in canonical.type.value_type} == expected


def test_partition_values_are_reported_by_name(request: pytest.FixtureRequest) -> None:
    table: TableHandle = request.getfixturevalue("parquet").load(("area",), "hive")
    files = table.files(now(table))
    values = [json.loads(each) for each in partition_json(files, table.partition_specs, table.schema.arrow).to_pylist()]
    assert {"year": "2024", "day": "2026-01-01", "country": "NL"} in values
    assert {each["country"] for each in values} == {"NL", "DE", None, "a b/c"}


def test_float_is_written_as_its_exact_double() -> None:
    from skiway.formats.canonical import _text

    assert _text(pa.array([0.1], pa.float32())).to_pylist() == ["0.10000000149011612"]
    assert _text(pa.array([float("inf"), float("-inf"), -0.0, 1.5])).to_pylist() == [
        "Infinity",
        "-Infinity",
        "0",
        "1.5",
    ]


def test_sixteen_bytes_are_a_uuid_only_in_a_uuid_column(tmp_path: Path) -> None:
    number = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    columns = pa.schema({"id": pa.uuid(), "digest": pa.binary(16), "part": pa.uuid(), "raw": pa.binary(16)})
    table = LooseTable(tmp_path, columns, "part", "raw")
    table.append(
        pa.table(
            {name: pa.array([number.bytes], pa.binary(16)).cast(columns.field(name).type) for name in columns.names}
        )
    )
    handle = table.handle
    files = handle.files(now(handle))
    (canonical,) = canonical_columns(files, handle.schema.arrow).to_pylist()
    spelled = base64.b64encode(number.bytes).decode()
    assert {each["column_name"]: (each["min"], each["max"]) for each in canonical} == {
        "id": (str(number), str(number)),
        "digest": (spelled, spelled),
        "part": (str(number), str(number)),
        "raw": (spelled, spelled),
    }
    (values,) = partition_json(files, handle.partition_specs, handle.schema.arrow).to_pylist()
    assert json.loads(values) == {"part": str(number), "raw": spelled}


def test_bounds_with_a_year_of_more_than_four_digits_are_unknown(tmp_path: Path) -> None:
    """Arrow formats them as other years, and Python cannot parse them."""
    first, last = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
    micros = 86_400_000_000
    columns = {
        "near": pa.array([first, last], pa.int32()).view(pa.date32()),
        "far": pa.array([first - 1, last + 1], pa.int32()).view(pa.date32()),
        "near_ts": pa.array([first * micros, (last + 1) * micros - 1]).view(pa.timestamp("us", "UTC")),
        "far_ts": pa.array([-(2**63) + 2, 2**63 - 2]).view(pa.timestamp("us")),
        "ns": pa.array([-(2**63) + 2, 2**63 - 2]).view(pa.timestamp("ns")),
    }
    rows = pa.table(columns)
    table = LooseTable(tmp_path, rows.schema, format_version="3")
    table.append(rows)
    handle = table.handle
    (canonical,) = canonical_columns(handle.files(now(handle)), handle.schema.arrow).to_pylist()
    assert {each["column_name"]: (each["min"], each["max"]) for each in canonical} == {
        "near": ("0001-01-01", "9999-12-31"),
        "far": (None, None),
        "near_ts": ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
        "far_ts": (None, None),
        "ns": ("1677-09-21T00:12:43.145224", "2262-04-11T23:47:16.854776"),
    }
