"""The functions `rollback_to`, `tag` and `branch`, which name snapshots of managed tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from skiway.airport import Parameter
from skiway.errors import AlreadyExists, InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.commits import Producer, rollback, set_ref
from skiway.formats.iceberg.snapshots import MAIN
from skiway.lake.system.effects import ChangeTable, Place

__all__ = ["BranchFunction", "RollbackFunction", "TagFunction"]


class _SnapshotFunction(ChangeTable):
    """A function that changes which snapshots of a table have names."""

    result = pa.schema(
        {"table": pa.string(), "name": pa.string(), "snapshot_id": pa.int64(), "previous_id": pa.int64()}
    )

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Commit the change of the name. It fails if somebody else changes the same name at the same time."""
        changes = self.changes(place)
        before, name = changes.load().metadata, self.ref(given)
        previous = before.refs.get(name)
        if previous is not None and name != MAIN and not given["replace"]:
            raise AlreadyExists(
                f"{name!r} is a {previous.snapshot_ref_type} of table {place} already: add replace => true to move it",
                key="snapshot.name",
            )
        snapshot_id: int | None = given["snapshot"]
        if snapshot_id is None:
            current = before.current_snapshot()
            if current is None:
                raise PreconditionFailed(f"table {place} has no snapshots yet: insert rows first", key="snapshot.none")
            snapshot_id = current.snapshot_id
        changes.commit(self.producer(name, snapshot_id))
        return {
            "table": self.full_name(place),
            "name": name,
            "snapshot_id": snapshot_id,
            "previous_id": previous.snapshot_id if previous else None,
        }

    def ref(self, given: Mapping[str, Any]) -> str:
        """The name of the snapshot."""
        name = (given[self.kind] or "").strip()
        if not name or name == MAIN or name.isdecimal():
            raise InvalidArgument(
                f"{given[self.kind]!r} cannot be the name of a {self.kind}: choose one that is not empty, not a number, and "
                f"not {MAIN}",
                key="snapshot.name",
            )
        return name

    def producer(self, name: str, snapshot_id: int) -> Producer:
        """The change to commit."""
        return set_ref(name, snapshot_id, kind=self.kind)

    kind: Literal["branch", "tag"] = "tag"


class RollbackFunction(_SnapshotFunction):
    """`rollback_to(table, snapshot)`: makes an older snapshot the current one again."""

    name = "rollback_to"
    comment = "Makes a snapshot the current one again: rollback_to('s.t', 5781947118336215154)."
    parameters = (Parameter("name", pa.string()), Parameter("snapshot", pa.int64()))

    def ref(self, given: Mapping[str, Any]) -> str:
        """The branch of the current snapshot."""
        if given["snapshot"] is None:
            raise InvalidArgument("rollback_to needs the id of a snapshot: skiway.snapshots lists them")
        return MAIN

    def producer(self, name: str, snapshot_id: int) -> Producer:
        """The change to commit."""
        assert name == MAIN
        return rollback(snapshot_id)


class TagFunction(_SnapshotFunction):
    """`tag(table, tag)`: gives a snapshot a name that does not move."""

    name = "tag"
    comment = "Names a snapshot, the current one by default: tag('s.t', 'before import', snapshot => …)."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("tag", pa.string()),
        Parameter("snapshot", pa.int64(), named=True),
        Parameter("replace", pa.bool_(), named=True),
    )
    kind = "tag"


class BranchFunction(_SnapshotFunction):
    """`branch(table, branch)`: gives a snapshot a name to which other programs can commit."""

    name = "branch"
    comment = "Starts a branch at a snapshot, the current one by default: branch('s.t', 'audit', snapshot => …)."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("branch", pa.string()),
        Parameter("snapshot", pa.int64(), named=True),
        Parameter("replace", pa.bool_(), named=True),
    )
    kind = "branch"
