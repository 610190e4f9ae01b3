"""The function `undrop`, which restores a dropped table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from skiway.airport import Parameter
from skiway.lake.system.effects import EffectFunction, Place
from skiway.metastore import managed

__all__ = ["UndropFunction"]


class UndropFunction(EffectFunction):
    """`undrop(table)`: restores a table that was dropped in the last days, with all its snapshots."""

    name = "undrop"
    comment = "Restores the table with this name that was dropped last: undrop('s.t')."
    permission = "table.write"
    parameters = (Parameter("name", pa.string()),)
    result = pa.schema({"table": pa.string(), "snapshot_id": pa.int64(), "snapshots": pa.int64()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Restore the table."""
        realm, warehouse = self._context.callers.realm(), self._context.handles.warehouse
        metadata = managed.undrop(realm, warehouse, place.namespace.resource_id, place.name).metadata
        current = metadata.current_snapshot()
        return {
            "table": self.full_name(place),
            "snapshot_id": None if current is None else current.snapshot_id,
            "snapshots": len(metadata.snapshots),
        }
