"""The log of Delta tables: versions, times, column mapping, bounds and partitions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import deltalake
import pyarrow as pa
import pyarrow.dataset
import pytest

from skiway.errors import Unsupported
from skiway.formats import Snapshot, location, open_source
from skiway.formats.delta import log
from skiway.formats.delta.log import DeltaSchema
from skiway.formats.delta.table import (
    _bounds,
    _deleted_positions,
    _is_exact,
    _options,
    _required_features,
    _url,
    _within,
)
from skiway.formats.files import Files
from skiway.formats.schemas import field_id
from skiway.security.source_access import Location


class Log:
    """The files of a log in memory, by name; the value is their content and the time of modification."""

    def __init__(self, **names: tuple[str, int]) -> None:
        self._files, self.read_names = names, list[str]()

    def children(self, folder: Location) -> tuple[list[Location], list[Any]]:
        found = [SimpleNamespace(location=folder / name, modified_us=at) for name, (_, at) in self._files.items()]
        return [], found

    def read(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        self.read_names.append(name)
        return self._files[name][0].encode()


def commit(version: int, at: int = 0, **info: Any) -> dict[str, tuple[str, int]]:
    lines = [json.dumps({"protocol": {}}), json.dumps({"commitInfo": info})]
    return {f"{version:020}.json": ("\n".join(lines), at)}


def checkpoint(version: int, at: int = 0) -> dict[str, tuple[str, int]]:
    return {f"{version:020}.checkpoint.parquet": ("", at)}


def versions(*parts: dict[str, tuple[str, int]], upto: int, **options: Any) -> list[Snapshot]:
    names = {name: value for part in parts for name, value in part.items()}
    place = location("file:///t")
    return log.snapshots(cast(Files, Log(**names)), place, upto=upto, **options)


def test_versions_are_listed_in_order_with_their_parents() -> None:
    commits = [commit(number, timestamp=number * 1000, operation=f"OP {number}") for number in (2, 0, 1, 3)]
    found = versions(*commits, upto=2)
    assert [(each.id, each.parent_id, each.sequence_number) for each in found] == [(0, None, 0), (1, 0, 1), (2, 1, 2)]
    assert [each.created_at.timestamp() for each in found] == [0, 1, 2]
    assert [each.summary["operation"] for each in found] == ["OP 0", "OP 1", "OP 2"]
    assert [each.id for each in versions(*commits, upto=3, since=2)] == [2, 3]
    assert [each.id for each in versions(*commits, upto=3, without={1, 3})] == [0, 2]


def test_versions_before_the_first_checkpoint_cannot_be_read() -> None:
    parts = [commit(3), commit(4), checkpoint(4, at=7_000_000), commit(5), checkpoint(6, at=9_000_000)]
    found = versions(*parts, upto=6)
    assert [(each.id, each.parent_id) for each in found] == [(4, None), (5, 4), (6, 5)]
    assert found[-1].created_at == datetime.fromtimestamp(9, UTC), "there is only a checkpoint"
    assert [each.id for each in versions(commit(3), commit(4), upto=4)] == [4]


def test_other_files_of_the_log_are_not_versions() -> None:
    names = ["0.json", f"{1:020}.json.tmp", f"{2:021}.json", "_last_checkpoint", f"{3:020}.crc", f"x{4:020}.json"]
    others = dict.fromkeys(names, ("", 0))
    assert [each.id for each in versions(commit(0), others, upto=9)] == [0]


@pytest.mark.parametrize(
    ("content", "milliseconds"),
    [
        (json.dumps({"commitInfo": {"timestamp": 1500}}), 1500),
        (json.dumps({"commitInfo": {"timestamp": 1500, "inCommitTimestamp": 2500}}), 2500),
        (json.dumps({"commitInfo": {"timestamp": "soon"}}), 7),
        (json.dumps({"commitInfo": 5}), 7),
        (json.dumps([1]), 7),
        ("{", 7),
        ("", 7),
    ],
)
def test_time_of_a_commit_without_one_is_that_of_its_file(content: str, milliseconds: int) -> None:
    (found,) = versions({f"{0:020}.json": (content, 7_999)}, upto=0)
    assert found.created_at == datetime.fromtimestamp(milliseconds / 1000, UTC)


def field(name: str, of: pa.DataType, number: int | None = None) -> pa.Field:
    facts = {"delta.columnMapping.id": str(number), "delta.columnMapping.physicalName": f"col-{number}"}
    return pa.field(name, of, metadata=facts if number is not None else None)


MAPPED = pa.schema(
    [
        field("a", pa.int64(), 1),
        field("s", pa.struct([field("x", pa.int64(), 3)]), 2),
        field("l", pa.list_(pa.field("element", pa.struct([field("y", pa.int64(), 5)]))), 4),
        field("m", pa.map_(pa.string(), pa.field("value", pa.struct([field("z", pa.int64(), 7)]))), 6),
        field("p", pa.string(), 8),
    ]
)


def test_columns_are_mapped_to_their_physical_names() -> None:
    found = DeltaSchema.of(MAPPED, ["p", "a"], "name", first_id=1000)
    assert [field_id(each) for each in found.table.arrow] == [1, 2, 4, 6, 8]
    assert found.physical == {1: ("col-1",), 3: ("col-2", "col-3"), 8: ("col-8",)}
    parts = {("col-4", "element"), ("col-6", "key"), ("col-6", "value")}
    assert len({found.ids[part] for part in parts} - set(range(9))) == 3  # Delta gives them no ids
    assert {path: number for path, number in found.ids.items() if path not in parts} == {
        ("col-1",): 1,
        ("col-2",): 2,
        ("col-2", "col-3"): 3,
        ("col-4",): 4,
        ("col-4", "element", "col-5"): 5,
        ("col-6",): 6,
        ("col-6", "value", "col-7"): 7,
        ("col-8",): 8,
    }
    assert [(each.id, each.name, each.source_id) for each in found.spec.fields] == [(1000, "p", 8), (1001, "a", 1)]
    stored = found.with_ids(pa.schema({"col-1": pa.int64(), "other": pa.int64()}), "f")
    assert [field_id(each) for each in stored] == [1, None]


def test_files_of_a_table_that_maps_by_id_need_ids() -> None:
    found = DeltaSchema.of(MAPPED, [], "id", first_id=1000)
    with_ids = pa.schema([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "1"}), pa.field("y", pa.int64())])
    assert found.with_ids(with_ids, "f").equals(with_ids, check_metadata=True)
    with pytest.raises(Unsupported, match="file 'f' has no field ids"):
        found.with_ids(pa.schema({"x": pa.int64()}), "f")


def test_timestamps_are_widened_and_long_decimals_have_no_bounds() -> None:
    def bounds(of: pa.DataType, low: Any, high: Any) -> Any:
        found = _bounds(of, *(None if each is None else pa.array([each], of) for each in (low, high)))
        return [found[name].cast(pa.int64()).to_pylist()[0] for name in ("min", "max") if name in found]

    assert bounds(pa.timestamp("us"), 5000, 6000) == [4001, 6999]
    assert bounds(pa.int64(), 5, 6) == [5, 6]
    assert bounds(pa.decimal128(15, 0), 5, 6) == [5, 6]
    assert bounds(pa.decimal128(16, 0), 5, 6) == []
    assert bounds(pa.int64(), None, 6) == []
    assert bounds(pa.int64(), 5, None) == []
    assert [_is_exact(of) for of in (pa.int64(), pa.string(), pa.timestamp("us"), pa.date32())] == [
        True,
        False,
        False,
        True,
    ]


def test_statistics_are_found_by_path() -> None:
    low = pa.StructArray.from_arrays(
        [pa.array([1]), pa.StructArray.from_arrays([pa.array([2])], names=["x"])], names=["a", "s"]
    )
    actions = pa.table({"min": low})
    for path, values in ((["a"], [1]), (["s", "x"], [2])):
        found = _within(actions, "min", path)
        assert found is not None
        assert found.to_pylist() == values
    assert [_within(actions, "min", path) for path in (["b"], ["s"], ["a", "x"], ["s", "y"])] == [None] * 4
    assert _within(actions, "max", ["a"]) is None


def test_selected_rows_become_deleted_positions() -> None:
    assert _deleted_positions(pa.array([True, False, True, False])).to_pylist() == [1, 3]
    assert _deleted_positions(pa.array([], pa.bool_())).to_pylist() == []


@pytest.mark.parametrize(
    ("version", "named", "expected"),
    [(1, None, set()), (2, None, {"columnMapping"}), (3, ["deletionVectors"], {"deletionVectors"}), (3, None, set())],
)
def test_features_that_readers_need(version: int, named: Any, expected: set[str]) -> None:
    protocol = SimpleNamespace(reader_features=named, min_reader_version=version)
    assert _required_features(cast(Any, SimpleNamespace(protocol=lambda: protocol))) == expected


def test_storage_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def options(*, relay: str = "", is_anonymous: bool = False, **properties: str) -> dict[str, str]:
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
        return _options(cast(Files, SimpleNamespace(properties=named, relay=relay, is_anonymous=is_anonymous)))

    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    always = {"AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "false"}
    assert options() == always
    assert options(other="x", s3__region="r") == {**always, "AWS_REGION": "r"}
    assert options(is_anonymous=True, relay="http://p") == {
        **always,
        "AWS_SKIP_SIGNATURE": "true",
        "proxy_url": "http://p",
    }
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the server")
    assert options() == always
    assert options(s3__access_key_id="k")["AWS_SESSION_TOKEN"] == ""
    assert options(s3__access_key_id="k", s3__session_token="t")["AWS_SESSION_TOKEN"] == "t"
    assert _url(location("s3://bucket/a b%c")) == "s3://bucket/a%20b%25c"
    assert _url(location("file:///a b")) == "/a b"


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_partition_fields_are_numbered_from_1000_on(tmp_path: Path, kind: str) -> None:
    """As in Iceberg, so that they differ from the ids of columns."""
    rows = pa.table({"a": ["x"], "b": [1], "c": [2.5]})
    if kind == "delta":
        deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["a", "b"])
    else:
        pa.dataset.write_dataset(rows, tmp_path / "t", format="parquet", partitioning=["a", "b"], partitioning_flavor="hive")  # fmt: skip
    with open_source(kind, str(tmp_path)) as source:
        (spec,) = source.load((), "t").partition_specs
    assert [(each.id, each.name) for each in spec.fields] == [(1000, "a"), (1001, "b")]
