"""What a derived table was made from: its definition and the snapshots of its inputs, in the summary of its own snapshot.

The position is committed together with the rows. So it is always that of the rows that the table has, also after a killed run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from skiway.formats.iceberg.snapshots import history, summary_properties

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["PIPELINE", "POSITION", "InputState", "Position", "StoredPosition", "read_position"]

PIPELINE: Final = "skiway.pipeline.id"
"""The property of a derived table that has the id of its pipeline."""

POSITION: Final = "skiway.pipeline.position"


@dataclass(frozen=True, slots=True)
class InputState:
    """The state of an input: the id of the table, its snapshot (0 for a table without any), and a digest of its columns."""

    table: str
    snapshot: int
    columns: str


@dataclass(frozen=True, slots=True)
class Position:
    """The definition that made the rows of a table, as a digest, and the inputs by name."""

    definition: str
    inputs: Mapping[str, InputState]

    @property
    def summary(self) -> dict[str, str]:
        """The position as properties of a snapshot."""
        inputs = {name: asdict(state) for name, state in sorted(self.inputs.items())}
        return {POSITION: json.dumps({"definition": self.definition, "inputs": inputs}, separators=(",", ":"))}


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a table, and the snapshot that has it; both None if there is none.

    `is_changed` says that others have changed the rows since then.
    """

    value: Position | None = None
    snapshot_id: int | None = None
    is_changed: bool = False


def read_position(metadata: TableMetadata) -> StoredPosition:
    """The position of the rows that the table has now. A position that was lost or cannot be read is like none."""
    is_changed = False
    for snapshot in history(metadata):
        text = summary_properties(snapshot).get(POSITION)
        if text is not None:
            return StoredPosition(_parsed(text), snapshot.snapshot_id, is_changed)
        is_changed |= snapshot.summary is None or snapshot.summary.operation.value != "replace"
    return StoredPosition()


def _parsed(text: str) -> Position | None:
    try:
        found = json.loads(text)
        return Position(found["definition"], {name: InputState(**state) for name, state in found["inputs"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
