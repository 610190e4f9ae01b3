"""Scan tasks name the files, partitions and delete files that PyIceberg finds in the metadata of the same table."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest.scan_planning import ScanTasks
from pyiceberg.table import FileScanTask

from formats.delete_files import add_deletion_vectors, add_equality_deletes, add_position_deletes
from formats.managed import LooseTable
from skiway.errors import InvalidArgument
from skiway.formats.iceberg.changes.commits import delete_all, overwrite
from skiway.formats.iceberg.planning.scan_tasks import appended_files, scan_tasks, scanned_files

SCHEMA = pa.schema({"id": pa.int64(), "day": pa.date32(), "name": pa.string()})


def rows(*ids: int) -> pa.Table:
    days = [dt.date(2026, 1, 1 + number % 3) for number in ids]
    return pa.table({"id": ids, "day": days, "name": [f"n{number}" for number in ids]}, SCHEMA)


def tasks_of(table: LooseTable) -> dict[str, Any]:
    handle = table.handle
    current = handle.current()
    assert current is not None
    return scan_tasks(handle, scanned_files(handle, current, None, handle.schema.arrow), deletes_of=current)


def as_pyiceberg(found: dict[str, Any]) -> list[FileScanTask]:
    parsed = ScanTasks.model_validate(found)
    return [FileScanTask.from_rest_response(each, parsed.delete_files) for each in parsed.file_scan_tasks]


def facts(tasks: list[FileScanTask]) -> list[Any]:
    return sorted(
        (
            each.file.file_path,
            each.file.record_count,
            each.file.file_size_in_bytes,
            each.file.file_format.value,
            sorted((one.file_path, one.record_count, one.file_size_in_bytes) for one in each.delete_files),
        )
        for each in tasks
    )


@pytest.mark.parametrize("version", ["2", "3"])
def test_tasks_are_those_that_pyiceberg_plans(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, SCHEMA, format_version=version)
    first, second = (table.append(rows(*ids))[0].file_path for ids in ((1, 2, 3), (4, 5)))
    if version == "2":
        add_position_deletes(table, first, 1)
    else:
        add_deletion_vectors(table, {first: [1], second: [0]})
    found = tasks_of(table)
    assert facts(as_pyiceberg(found)) == facts(list(table.peer.scan().plan_files()))
    deletes = found["delete-files"]
    if version == "3":
        assert {each["referenced-data-file"] for each in deletes} == {first, second}
        assert all(each["content-offset"] > 0 and each["content-size-in-bytes"] > 0 for each in deletes)
        assert [each["data-file"]["first-row-id"] for each in found["file-scan-tasks"]] in ([0, 3], [3, 0])


def test_equality_deletes(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, SCHEMA)
    table.append(rows(1, 2, 3))
    add_equality_deletes(table, pa.table({"id": [2]}), [1])
    table.append(rows(2))
    found = tasks_of(table)
    (delete,) = found["delete-files"]
    assert (delete["content"], delete["equality-ids"]) == ("equality-deletes", [1])
    by_rows = {
        each["data-file"]["record-count"]: each.get("delete-file-references") for each in found["file-scan-tasks"]
    }
    assert by_rows == {3: [0], 1: None}, "rows that were added later are not deleted"


def test_partition_values_are_in_the_json_of_iceberg(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, SCHEMA, "day", "truncate(2, name)")
    table.append(rows(1, 2))
    partitions = [each["data-file"]["partition"] for each in tasks_of(table)["file-scan-tasks"]]
    assert sorted(partitions) == [["2026-01-02", "n1"], ["2026-01-03", "n2"]]


def test_residual_is_the_filter(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, SCHEMA)
    table.append(rows(1))
    handle = table.handle
    current = handle.current()
    assert current is not None
    files = scanned_files(handle, current, None, handle.schema.arrow)
    residual = {"type": "eq", "term": "id", "value": 1}
    (task,) = scan_tasks(handle, files, residual=residual)["file-scan-tasks"]
    assert task["residual-filter"] == residual
    assert "delete-files" not in scan_tasks(handle, files)


def test_files_that_were_appended_between_two_snapshots(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, SCHEMA)
    paths = {}
    for name in ("first", "second"):
        paths[name] = table.append(rows(1))[0].file_path
    add_position_deletes(table, paths["second"], 0)
    table.change(overwrite([paths["first"]], table.write(rows(7)), based_on=table.metadata.current_snapshot_id))
    paths["third"] = table.append(rows(2))[0].file_path
    table.change(delete_all())
    paths["fourth"] = table.append(rows(3))[0].file_path
    ids = [each.id for each in table.handle.snapshots()]

    def appended(start: int, end: int) -> list[str]:
        return list(appended_files(table.handle, start, end, None, table.handle.schema.arrow)["path"].to_pylist())

    assert appended(ids[0], ids[-1]) == [paths["second"], paths["third"], paths["fourth"]]
    assert appended(ids[1], ids[4]) == [paths["third"]]
    assert appended(ids[1], ids[1]) == []
    for start, end in ((ids[-1], ids[0]), (77, ids[-1]), (ids[0], 77)):
        with pytest.raises(InvalidArgument, match="is not a snapshot"):
            appended(start, end)
