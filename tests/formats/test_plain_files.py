"""Which data files other readers can read by themselves, and the schemas of single files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from formats.delete_files import add_position_deletes
from formats.managed import LooseTable
from skiway.errors import Conflict, InvalidArgument, PermissionDenied, PreconditionFailed
from skiway.formats import Location, TableHandle, WholeFile, open_source
from skiway.formats.files import Reach
from skiway.formats.schemas import field_id
from skiway.security.source_access import SourceAccess

ROWS = pa.table({"p": ["a", "b"], "x": [1, 2]})


def delta(place: Path, **options: Any) -> TableHandle:
    deltalake.write_deltalake(str(place / "t"), ROWS, **options)
    deltalake.write_deltalake(str(place / "t"), ROWS, mode="append", **options)
    return open_source("delta", str(place)).load((), "t")


def plain(table: TableHandle) -> list[str] | None:
    snapshot = table.current()
    assert snapshot is not None
    found = table.plain_files(snapshot, table.plan(snapshot))
    return None if found is None else [each.path for each in found]


def test_files_with_all_columns_and_rows_are_plain(tmp_path: Path) -> None:
    found = plain(delta(tmp_path))
    assert found is not None
    assert sorted(found) == sorted(str(each) for each in (tmp_path / "t").glob("*.parquet"))
    assert len(found) == 2


def test_partitioned_files_lack_columns(tmp_path: Path) -> None:
    assert plain(delta(tmp_path, partition_by=["p"])) is None


def test_files_of_a_folder_may_change(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(ROWS, tmp_path / "t" / "a.parquet")
    assert plain(open_source("parquet", str(tmp_path)).load((), "t")) is None


def test_files_with_deleted_rows_are_not_plain(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    table.append(ROWS)
    found = plain(table.handle)
    assert found is not None
    assert pq.read_table(found[0]).num_rows == 2
    add_position_deletes(table, f"file://{found[0]}", 0)
    assert plain(table.handle) is None


def test_files_with_int96_are_not_plain(tmp_path: Path) -> None:
    """Other readers return these timestamps without a time zone."""
    rows = pa.table({"at": pa.array([1], pa.timestamp("us", "UTC"))})
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    (file,) = plain(open_source("delta", str(tmp_path)).load((), "t")) or [""]
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True)
    assert plain(open_source("delta", str(tmp_path)).load((), "t")) is None


def test_files_of_sources_that_callers_named_are_not_plain(tmp_path: Path) -> None:
    """Readers on this machine would follow links that lead out of the source."""
    delta(tmp_path)
    access = SourceAccess(local_roots=(str(tmp_path),), for_callers=True)
    assert plain(open_source("delta", str(tmp_path), access=access).load((), "t")) is None


# -- files for other processes -------------------------------------------------------------------------------------------


def whole(table: TableHandle) -> list[WholeFile] | None:
    snapshot = table.current()
    assert snapshot is not None
    return table.whole_files(snapshot, table.plan(snapshot))


def folder(place: Path) -> list[WholeFile]:
    (place / "t").mkdir()
    for name in ("a", "b"):
        pq.write_table(ROWS, place / "t" / f"{name}.parquet")
    found = whole(open_source("parquet", str(place)).load((), "t"))
    assert found is not None
    return found


def opened(file: WholeFile) -> pa.Table:
    with os.fdopen(file.open(), "rb") as content:
        return pq.read_table(content)


def test_partition_values_are_constants_of_whole_files(tmp_path: Path) -> None:
    table = delta(tmp_path, partition_by=["p"])
    found = whole(table)
    assert found is not None
    p, x = (field_id(each) for each in table.schema.arrow)
    assert sorted((each.constants[p or 0].as_py(), *opened(each)["x"].to_pylist()) for each in found) == [
        *[("a", 1)] * 2,
        *[("b", 2)] * 2,
    ]
    assert [list(each.columns) for each in found] == [[x]] * 4


def test_changed_file_is_not_opened(tmp_path: Path) -> None:
    first, second = folder(tmp_path)
    pq.write_table(ROWS.slice(1), second.path.removeprefix("file://"))
    assert opened(first) == ROWS
    with pytest.raises(Conflict, match="has changed since the table was listed"):
        second.open()


def test_missing_file_is_not_opened(tmp_path: Path) -> None:
    first, second = folder(tmp_path)
    Path(second.path.removeprefix("file://")).unlink()
    with pytest.raises(PreconditionFailed, match="is missing"):
        second.open()
    assert opened(first) == ROWS


def test_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    place = Path(folder(tmp_path / "source")[1].path.removeprefix("file://"))
    found = whole(open_source("parquet", str(tmp_path / "source")).load((), "t"))
    assert found is not None
    pq.write_table(ROWS, tmp_path / "secret.parquet")
    place.unlink()
    place.symlink_to(tmp_path / "secret.parquet")
    with pytest.raises(PermissionDenied, match="outside of the folders"):
        found[1].open()


def test_link_that_replaces_a_folder_between_check_and_opening_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    found = folder(tmp_path / "source")
    (tmp_path / "other").mkdir()
    pq.write_table(ROWS, tmp_path / "other" / "b.parquet")
    check = Reach.check

    def checked(self: Reach, place: Location) -> Location:
        real = check(self, place)
        (tmp_path / "source" / "t").rename(tmp_path / "source" / "old")
        (tmp_path / "source" / "t").symlink_to(tmp_path / "other")
        return real

    monkeypatch.setattr(Reach, "check", checked)
    with pytest.raises(PreconditionFailed, match="is missing"):
        found[1].open()


def test_files_with_deleted_rows_are_not_whole(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    table.append(ROWS)
    found = whole(table.handle)
    assert found is not None
    assert opened(found[0]).num_rows == 2
    add_position_deletes(table, found[0].path, 0)
    assert whole(table.handle) is None


def test_files_with_int96_are_not_whole(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    rows = pa.table({"at": pa.array([1], pa.timestamp("us", "UTC"))})
    pq.write_table(rows, tmp_path / "t" / "a.parquet", use_deprecated_int96_timestamps=True)
    assert whole(open_source("parquet", str(tmp_path)).load((), "t")) is None


def test_newest_spec_partitions_new_files(tmp_path: Path) -> None:
    table = delta(tmp_path, partition_by=["p"])
    assert table.partition_spec is table.partition_specs[0]
    assert open_source("delta", str(tmp_path)).load((), "t").partition_spec is not None


def test_schema_of_a_file_has_the_ids_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(ROWS, tmp_path / "t" / "a.parquet")
    table = open_source("parquet", str(tmp_path)).load((), "t")
    snapshot = table.current()
    assert snapshot is not None
    (file,) = table.files(snapshot).to_pylist()
    for etag in (None, file["etag"]):
        found = table.file_schema(snapshot, file["path"], etag=etag)
        assert [field_id(each) for each in found] == [field_id(each) for each in table.schema.arrow]
    with pytest.raises(Conflict):
        table.file_schema(snapshot, file["path"], etag="other")


def test_unknown_columns_are_rejected_with_the_known_ones(tmp_path: Path) -> None:
    table = delta(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    with pytest.raises(InvalidArgument, match="table 't' has no column 'y'; it has p, x"):
        table.read(snapshot, columns=["x", "y"])
