"""What of a managed table only a commit may change: its record says what its metadata file says, and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from skiway.errors import PreconditionFailed
from skiway.model import v1

__all__ = ["refuse_fields", "refuse_snapshots", "require_managed"]

_COMMITTED: Final = ("schema_json", "properties", "upstream")


def refuse_fields(table: v1.Table, paths: Collection[str]) -> None:
    """Raise if the table is managed and one of the fields comes from its metadata."""
    owned = sorted(path for path in paths if path.partition(".")[0] in _COMMITTED)
    if table.metadata_location and owned:
        raise _refused(table, ", ".join(owned))


def refuse_snapshots(table: v1.Table) -> v1.Table:
    """The table, or an error if it is managed."""
    if table.metadata_location:
        raise _refused(table, "snapshots")
    return table


def require_managed(table: v1.Table) -> v1.Table:
    """The table, or an error if it is not managed."""
    if not table.metadata_location:
        raise PreconditionFailed(
            f"table {table.display_name} is not managed here: trigger the connector that brings it in",
            key="table.not_managed",
            id=table.resource_id.id,
        )
    return table


def _refused(table: v1.Table, what: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{what} of managed table {table.display_name} cannot be set: they follow from its commits; change the table "
        "with SQL, or commit to it as an Iceberg table",
        key="table.managed",
        id=table.resource_id.id,
    )
