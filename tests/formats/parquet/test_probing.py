"""Filtered reads that load the filter columns before the other columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import scope
from formats.pushed_filters import pushed_filter
from skiway.errors import Conflict, PreconditionFailed
from skiway.formats import FILE_ORDINAL, ROW_POSITION, TableHandle, open_source

GROUP = 100
ROWS = 5 * GROUP


def write_table(folder: Path) -> pa.Table:
    """A table of five row groups whose `key` statistics prune nothing, with a partition value stored in no file."""
    ids = pa.array(range(ROWS), pa.int64())
    keys = pc.bit_wise_and(pc.multiply(ids, 7919), 255)
    rows = pa.table({"id": ids, "key": keys, "text": pc.binary_join_element_wise("row", ids.cast(pa.string()), " ")})
    (folder / "part=3").mkdir(parents=True)
    pq.write_table(rows, folder / "part=3" / "rows.parquet", row_group_size=GROUP, use_dictionary=False)
    return rows.append_column("part", pa.repeat(pa.scalar(3, pa.int64()), ROWS))


def open_table(folder: Path) -> TableHandle:
    with open_source("parquet", str(folder)) as source:
        return source.load((), "spread")


PREDICATES = [
    "key = 17",
    "key = 300",
    "key < 250",
    "key IN (5, 250, 77)",
    "key = 7 OR key = 8",
    "key = 17 AND part = 3",
    "key = 17 AND part = 4",
    "key >= 0 AND id > 340",
]


@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("batch_rows", [7, pytest.param(1000, marks=pytest.mark.full)])
@pytest.mark.parametrize("columns", [["id", "key", "text", "part"], ["text"], ["part"], ["key"], []], ids=str)
def test_result_equals_filtering_after_the_read(
    tmp_path: Path, predicate: str, batch_rows: int, columns: list[str]
) -> None:
    everything = write_table(tmp_path / "spread")
    table = open_table(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    condition = pushed_filter(predicate, table.schema.arrow)
    found = table.read(snapshot, columns=columns, filter=condition, positions=True, batch_rows=batch_rows)
    assert found.schema.names == [*columns, FILE_ORDINAL, ROW_POSITION]
    rows = found.read_all()
    wanted = [place for place, row in enumerate(everything.to_pylist()) if holds(predicate, row)]
    assert rows[ROW_POSITION].to_pylist() == wanted
    expected = everything.take(pa.array(wanted, pa.int64())).select(columns)
    assert rows.select(columns).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("predicate", [None, "key = 17", "id >= 150 AND id < 420", "id < 0"])
@pytest.mark.parametrize("shares", scope.sample([3, 1, 2, 5, 8], every=4))
def test_shares_of_a_file_have_all_its_rows_once(tmp_path: Path, predicate: str | None, shares: int) -> None:
    write_table(tmp_path / "spread")
    table = open_table(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    condition = None if predicate is None else pushed_filter(predicate, table.schema.arrow)
    whole = table.read(snapshot, filter=condition, positions=True).read_all()
    parts = [
        table.read(snapshot, filter=condition, positions=True, share=(number, shares)).read_all()
        for number in range(shares)
    ]
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist(), "in the same order, with the same positions"
    if predicate is None:
        assert max(part.num_rows for part in parts) <= GROUP * -(-5 // shares)


def holds(predicate: str, row: dict[str, int]) -> bool:
    """Whether the row matches the predicate, evaluated in Python."""
    python = predicate.replace(" = ", " == ").replace("AND", "and").replace("OR", "or").replace("IN", "in")
    return bool(eval(python, {}, row))  # only the predicates above


def test_other_columns_are_not_read_where_no_row_matches(tmp_path: Path) -> None:
    """Their bytes are overwritten in row groups without matches, and the read still succeeds."""
    everything = write_table(tmp_path / "spread")
    file = tmp_path / "spread" / "part=3" / "rows.parquet"
    (matching,) = [row for row in everything.to_pylist() if row["key"] == 17]
    for group in {0, 1, 2, 3, 4} - {matching["id"] // GROUP}:
        destroy(file, group, column=2)
    table = open_table(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    assert table.read(snapshot, filter=pushed_filter("key = 17", table.schema.arrow)).read_all().to_pylist() == [
        matching
    ]
    with pytest.raises(PreconditionFailed, match="corrupt"):
        table.read(snapshot, columns=["text"]).read_all()


def destroy(file: Path, group: int, *, column: int) -> None:
    """Overwrite the pages of a column in one row group."""
    chunk = pq.ParquetFile(file).metadata.row_group(group).column(column)
    data = bytearray(file.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = (
        b"\xff" * chunk.total_compressed_size
    )
    file.write_bytes(data)


def test_first_row_group_is_read_in_smaller_batches(tmp_path: Path) -> None:
    everything = write_table(tmp_path / "spread")
    table = open_table(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    found = list(table.read(snapshot, batch_rows=GROUP, first_batch_rows=30))
    assert [batch.num_rows for batch in found] == [30, 30, 30, 10, *[GROUP] * 4]
    assert pa.Table.from_batches(found).to_pylist() == everything.to_pylist()
    never_larger = table.read(snapshot, batch_rows=50, first_batch_rows=1000)
    assert {batch.num_rows for batch in never_larger} == {50}


def test_only_the_first_file_is_read_in_smaller_batches(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / "spread"
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": range(number * GROUP, (number + 1) * GROUP)}), folder / f"{number}.parquet")
    table = open_table(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    assert [batch.num_rows for batch in table.read(snapshot, first_batch_rows=60)] == [60, 40, GROUP]


def test_planning_notices_a_changed_file(tmp_path: Path) -> None:
    """The new content has no row group that matches, but rows of the listed file must not be missing silently."""
    everything = write_table(tmp_path / "spread")
    table = open_table(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    schema = table.schema.arrow
    condition = pushed_filter("id = 5", schema)
    files = table.files(snapshot)
    (part,) = table.matching_parts(snapshot, files, condition, schema=schema).values()
    assert part.row_groups == 1
    others = everything.slice(GROUP).drop_columns(["part"])
    pq.write_table(others, tmp_path / "spread" / "part=3" / "rows.parquet", row_group_size=GROUP)
    with pytest.raises(Conflict, match="has changed"):
        table.matching_parts(snapshot, files, condition, schema=schema)
