"""The functions `partition_by` and `sort_by`: how rows of managed tables are written from now on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from skiway.airport import Parameter
from skiway.formats.iceberg.commits import Producer
from skiway.formats.iceberg.partitions import partition_by, sort_by
from skiway.lake.system.effects import ChangeTable, Place
from skiway.metastore.managed import ManagedTable

__all__ = ["PartitionByFunction", "SortByFunction"]


class _LayoutFunction(ChangeTable):
    """A function that changes how rows are written. Existing files stay as they are."""

    result = pa.schema({"table": pa.string(), "before": pa.string(), "now": pa.string()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Commit the change. It fails if somebody else makes such a change at the same time."""
        changes = self.changes(place)
        before = changes.load()
        after = changes.commit(self.producer(given[self.parameters[1].name] or ""))
        return {"table": self.full_name(place), "before": self.shown(before), "now": self.shown(after)}

    @abstractmethod
    def producer(self, text: str) -> Producer:
        """The change to commit."""

    @abstractmethod
    def shown(self, table: ManagedTable) -> str:
        """The layout as text."""


class PartitionByFunction(_LayoutFunction):
    """`partition_by(table, partitions)`: the partitions of rows that are written from now on."""

    name = "partition_by"
    comment = "Partitions new rows: partition_by('s.t', 'day(ts), bucket(16, id), region'), or '' for no partitions."
    parameters = (Parameter("name", pa.string()), Parameter("partitions", pa.string()))

    def producer(self, text: str) -> Producer:
        """The change to commit."""
        return partition_by(text)

    def shown(self, table: ManagedTable) -> str:
        """The partitions as text."""
        schema = table.metadata.schema()
        return ", ".join(
            _applied(str(field.transform), schema.find_column_name(field.source_id) or field.name)
            for field in table.metadata.spec().fields
        )


class SortByFunction(_LayoutFunction):
    """`sort_by(table, columns)`: the order of rows that are written from now on."""

    name = "sort_by"
    comment = "Sorts new rows within files: sort_by('s.t', 'ts DESC, id'), or '' for no order."
    parameters = (Parameter("name", pa.string()), Parameter("columns", pa.string()))

    def producer(self, text: str) -> Producer:
        """The change to commit."""
        return sort_by(text)

    def shown(self, table: ManagedTable) -> str:
        """The sort order as text."""
        schema = table.metadata.schema()
        return ", ".join(
            _applied(str(field.transform), schema.find_column_name(field.source_id) or "")
            + f" {field.direction.value.upper()} {field.null_order.value.replace('-', ' ').upper()}"
            for field in table.metadata.sort_order().fields
        )


def _applied(transform: str, column: str) -> str:
    """A transform in the notation of the functions: `bucket(16, id)`."""
    if transform == "identity":
        return column
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"
