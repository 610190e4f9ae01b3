"""Parts of large scans, row ids and the log of plans at their limits."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from skiway.errors import Conflict, LimitExceeded
from skiway.lake.reading.scans import Part, Plan, PlanLog, RowIds, split

MEGABYTE = 1 << 20


def files(*sizes: int, kind: str = "parquet") -> pa.Table:
    ordinals = pa.array(range(10, 10 + len(sizes)), pa.int32())
    return pa.table(
        {"ordinal": ordinals, "size_bytes": list(sizes), "format": pa.array([kind] * len(sizes), pa.string())}
    )


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([], 0),
        ([0], 1),
        ([0, 0], 1),
        ([32 * MEGABYTE], 1),
        ([16 * MEGABYTE] * 2, 1),
        ([16 * MEGABYTE, 16 * MEGABYTE + 1], 2),
        ([32 * MEGABYTE] * 2, 2),
        ([1000 * MEGABYTE], 1),
        ([32 * MEGABYTE] * 16, 16),
        ([32 * MEGABYTE] * 40, 16),
    ],
)
def test_parts_have_32_megabytes_and_are_at_most_16(sizes: list[int], count: int) -> None:
    found = split(7, files(*sizes))
    assert len(found) == count
    assert all(part.snapshot_id == 7 and part.ordinals and part.share is None for part in found)
    assert sorted(ordinal for part in found for ordinal in part.ordinals) == list(range(10, 10 + len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ([9], {}),
        ([10], {}),
        ([11], {10: 2}),
        ([20], {10: 2}),
        ([100], {10: 4}),
        ([40, 1, 1], {10: 3}),
        ([20, 20], {10: 2, 11: 2}),
        ([0, 0], {}),
    ],
)
def test_large_parquet_files_are_split_into_shares(sizes: list[int], shares: dict[int, int]) -> None:
    found = split(7, files(*sizes), part_bytes=10, most=4, within_files=True)
    split_files = {(part.ordinals[0], part.share) for part in found if part.share is not None}
    assert split_files == {(file, (number, count)) for file, count in shares.items() for number in range(count)}
    whole = [ordinal for part in found if part.share is None for ordinal in part.ordinals]
    assert sorted([*whole, *shares]) == list(range(10, 10 + len(sizes)))
    for other in (
        split(7, files(*sizes), part_bytes=10, most=4),
        split(7, files(*sizes, kind="avro"), part_bytes=10, most=4, within_files=True),
    ):
        assert all(part.share is None for part in other)


def test_largest_files_are_spread_over_parts() -> None:
    found = split(1, files(5, 1, 4, 2, 3, 3), part_bytes=9)
    assert [part.ordinals for part in found] == [[10, 11, 14], [12, 13, 15]]
    assert split(1, files(9, 1, 1, 1), part_bytes=6) == [Part(1, [10]), Part(1, [11, 12, 13])]
    assert split(1, files(5, 4, 3), part_bytes=1, most=2) == [Part(1, [10]), Part(1, [11, 12])]


def test_part_selects_its_files_and_survives_a_ticket() -> None:
    part = Part(2**62, [11, 13])
    assert Part.unpacked(part.packed()) == part
    assert part.of(files(1, 2, 3, 4))["size_bytes"].to_pylist() == [2, 4]


def plan(account: str, table: str) -> Plan:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Plan(account, now, "me", "c", "s", table, None, "", None, 1, 1, 1, 1, 1)


def test_log_keeps_the_last_plans_of_all_accounts() -> None:
    log = PlanLog(3)
    for number, account in enumerate(["a", "b", "a", "a"]):
        log.add(plan(account, str(number)))
    assert [each.table_name for each in log.of_account("a")] == ["2", "3"]
    assert [each.table_name for each in log.of_account("b")] == ["1"]
    assert log.of_account("c") == []
    many = PlanLog()
    for number in range(1002):
        many.add(plan("a", str(number)))
    assert [many.of_account("a")[place].table_name for place in (0, -1)] == ["2", "1001"]
    assert many.of_account("a")[0].reader == "server"


def snapshot(ordinal: int | None, rows: int | None) -> pa.Table:
    if ordinal is None:
        return pa.table({"ordinal": pa.array([], pa.int32()), "row_count": pa.array([], pa.int64())})
    return pa.table({"ordinal": pa.array([0, ordinal], pa.int32()), "row_count": pa.array([0, rows], pa.int64())})


@pytest.mark.parametrize(
    ("ordinal", "rows", "bits"), [(None, None, (0, 0)), (0, 1, (0, 1)), (1, 255, (1, 8)), (7, 256, (3, 9))]
)
def test_bits_of_row_ids_follow_from_the_files(ordinal: int | None, rows: int | None, bits: tuple[int, int]) -> None:
    found = RowIds.of("t", 1, snapshot(ordinal, rows))
    assert (found.file_bits, found.position_bits) == bits
    assert found.tag.bit_length() <= 63 - sum(bits)
    assert found.tag != RowIds.of("t", 2, snapshot(ordinal, rows)).tag != RowIds.of("u", 2, snapshot(ordinal, rows)).tag


def test_row_ids_of_the_largest_snapshot() -> None:
    """Twelve bits remain for the tag."""
    found = RowIds.of("t", 1, snapshot(2**11 - 1, 2**40 - 1))
    ids = found.encode(pa.array([0, 2047], pa.int32()), pa.array([0, 2**40 - 2], pa.int64()))
    ordinals, positions = found.decode(ids)
    assert (ordinals.tolist(), positions.tolist()) == ([0, 2047], [0, 2**40 - 2])
    assert ids.to_pylist() == [found.first(0), found.first(2047, 2**40 - 2)]
    assert 0 <= min(ids.to_pylist()) <= max(ids.to_pylist()) < 2**63
    for foreign in (found.first(0) - 1, found.first(0) + 2**51):
        with pytest.raises(Conflict, match=f"row id {foreign} does not belong to the snapshot"):
            found.decode(pa.array([ids[0].as_py(), foreign]))
    for too_large in (snapshot(2**12 - 1, 2**40 - 1), snapshot(2**11 - 1, 2**40)):
        with pytest.raises(LimitExceeded, match="a snapshot of 2 files"):
            RowIds.of("t", 1, too_large)
