"""Which delete files apply to a data file: all combinations of kind, order and partition, compared with the rules."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from metastore.planning.test_planner import file
from skiway.metastore.planning import scans
from skiway.metastore.planning.scans import Deletes, _in_bounds
from skiway.metastore.statistics import file_table
from skiway.model import v1


class Kind(NamedTuple):
    content: int
    sequence: int | None
    spec: int
    partition: str


SEQUENCES = (None, 0, 1, 2)
PARTITIONS = ((0, ""), (0, "{}"), (1, '{"a":"1"}'), (1, '{"a":"2"}'), (2, '{"a":"1"}'))
DATA = [Kind(v1.FC_DATA, sequence, *part) for sequence, part in product(SEQUENCES, PARTITIONS)]
DELETES = [
    Kind(content, sequence, *part)
    for content, sequence, part in product(
        (v1.FC_POSITION_DELETES, v1.FC_EQUALITY_DELETES), SEQUENCES, PARTITIONS
    )
]  # fmt: skip


def applies(delete: Kind, data: Kind) -> bool:
    by_equality = delete.content == v1.FC_EQUALITY_DELETES
    if delete.sequence is not None and data.sequence is not None:
        is_later = delete.sequence > data.sequence or (not by_equality and delete.sequence == data.sequence)
        if not is_later:
            return False
    if "" in (delete.partition, data.partition) or (by_equality and delete.partition == "{}"):
        return True
    return (delete.spec, delete.partition) == (data.spec, data.partition)


def test_deletes_apply_by_the_rules() -> None:
    kinds = [*DATA, *DELETES]
    files = file_table.rows(
        [
            file(
                f"{number:03}",
                file_content=each.content,
                sequence_number=each.sequence,
                partition_spec_id=each.spec,
                partition_data_json=each.partition,
            )
            for number, each in enumerate(kinds)
        ],
        {},
    )
    first = len(DATA)
    found = Deletes(files, np.arange(first, len(kinds))).applying(np.arange(first))
    for data, numbers in zip(DATA, found, strict=True):
        assert [DELETES[each] for each in numbers] == [each for each in DELETES if applies(each, data)], data
    some = Deletes(files, np.array([first + 3, first + 1])).applying(np.array([0]))
    assert some == [[place for place, each in enumerate((3, 1)) if applies(DELETES[each], DATA[0])]]


def test_tables_without_deletes_have_none() -> None:
    files = file_table.rows([file("a"), file("b")], {})
    assert Deletes(files, np.array([], dtype=np.int64)).applying(np.array([0, 1])) == [[], []]


@pytest.mark.parametrize(("room", "groups"), [(0, [1] * 4), (1, [1] * 4), (2, [2, 2]), (3, [3, 1]), (4, [4]), (9, [4])])
def test_messages_have_a_limited_size(room: int, groups: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    files = [v1.ScanFile(file_path=str(number)) for number in range(4)]
    size = files[0].ByteSize()
    monkeypatch.setattr(scans, "MESSAGE_BYTES", room * size + size // 2)
    assert [len(each) for each in _in_bounds(iter(files))] == groups
    monkeypatch.setattr(scans, "MESSAGE_BYTES", 1_000_000)
    monkeypatch.setattr(scans, "MESSAGE_FILES", max(1, room))
    assert [len(each) for each in _in_bounds(iter(files))] == groups
    assert [each for group in _in_bounds(iter(files)) for each in group] == files
    assert list(_in_bounds(iter([]))) == []


def test_messages_have_at_most_a_thousand_files_and_a_megabyte() -> None:
    many = [v1.ScanFile(file_path=str(number)) for number in range(2001)]
    assert [len(each) for each in _in_bounds(iter(many))] == [1000, 1000, 1]
    large = [v1.ScanFile(file_path="x" * 99_996) for _ in range(21)]
    assert large[0].ByteSize() == 100_000
    assert [len(each) for each in _in_bounds(iter(large))] == [10, 10, 1]
