"""Which delete files may apply to a data file.

Deletes apply to what was there before them: by position also to what came with them. Those of a partition apply to that
partition only; deletes by equality without a partition apply to all. Where order or place is not known, they apply.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.model import v1

__all__ = ["Deletes"]

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
UNPARTITIONED = ("", "{}")


class Deletes:
    """The delete files of a plan, numbered in the order in which they are told."""

    def __init__(self, files: pa.Table, deletes: Numbers) -> None:
        self._sequence = np.asarray(pc.fill_null(files["sequence_number"], -1))
        self._partition = _codes(files)
        self._deletes = deletes
        contents = np.asarray(files["file_content"])[deletes]
        by_equality = contents == v1.FC_EQUALITY_DELETES
        plain = np.asarray(pc.is_in(files["partition_data_json"], value_set=pa.array(UNPARTITIONED, pa.string())))[
            deletes
        ]
        unknown = np.asarray(pc.equal(pc.fill_null(files["partition_data_json"], ""), ""))
        self._unplaced = unknown
        self._everywhere = (by_equality & plain) | unknown[deletes]
        # By position, those of the same commit apply too: one less must be older than the data.
        self._before = np.where(by_equality, 0, 1)

    def applying(self, data: Numbers) -> list[list[int]]:
        """For each of these data files the numbers of the delete files."""
        if not len(self._deletes):
            return [[] for _ in data]
        own, others = self._sequence[data][:, None], self._sequence[self._deletes][None, :]
        unordered = (own < 0) | (others < 0)
        later = own < others + self._before[None, :]
        same = self._partition[data][:, None] == self._partition[self._deletes][None, :]
        anywhere = self._everywhere[None, :] | self._unplaced[data][:, None]
        applies = (unordered | later) & (same | anywhere)
        return [np.flatnonzero(row).tolist() for row in applies]


def _codes(files: pa.Table) -> Numbers:
    """A number for each file, the same for those of the same partition."""
    said = pc.binary_join_element_wise(
        files["partition_spec_id"].cast(pa.string()), pc.fill_null(files["partition_data_json"], ""), " "
    )
    whole = said.combine_chunks() if isinstance(said, pa.ChunkedArray) else said
    return np.asarray(whole.dictionary_encode().indices, dtype=np.int64)
