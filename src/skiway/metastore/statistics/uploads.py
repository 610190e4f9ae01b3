"""Statistics that come in many messages: one table, one snapshot, at most one key; stored in few, large steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from skiway.errors import InvalidArgument, SkiwayError
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import SNAPSHOT
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy
from skiway.model import v1
from skiway.storage import Check

__all__ = ["Target", "Upload"]

STEP = 10_000
STEP_BYTES = 32 * 1024 * 1024
"""How many items are stored at once, at most; fewer where they are large."""

Q = TypeVar("Q", v1.PutColumnStatsRequest, v1.PutFileColumnStatsRequest)
I = TypeVar("I", v1.ColumnStats, v1.FileColumnStats)  # noqa: E741 - an item


@dataclass(frozen=True, slots=True)
class Target:
    """The snapshot that statistics are put for, and the key they come with. `checks` hold while it exists."""

    table_id: v1.ResourceId
    snapshot_id: int
    key: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Upload(Generic[Q, I]):
    """How messages of one type are taken in: `take` their items, `check` each, `write` many."""

    realm: Realm
    take: Callable[[Q], Sequence[I]]
    check: Callable[[I], None]
    write: Callable[[Target, list[I]], None]
    empty: str

    def run(self, requests: Iterable[Q]) -> int:
        """How many items were stored. When one is refused, those before it stay."""
        target: Target | None = None
        pending: list[I] = []
        total = size = 0
        try:
            for request in requests:
                target = self._first(request) if target is None else self._next(target, request)
                for item in self.take(request):
                    self.check(item)
                    pending.append(item)
                    total += 1
                    size += item.ByteSize()
                    if len(pending) == STEP or size >= STEP_BYTES:
                        step, pending, size = pending, [], 0
                        self.write(target, step)
        except SkiwayError:
            if target is not None and pending:
                self.write(target, pending)
            raise
        if target is None or total == 0:
            raise failure(InvalidArgument, self.empty)
        if pending:
            self.write(target, pending)
        return total

    def _first(self, request: Q) -> Target:
        table = hierarchy.table(self.realm, request.table_id)
        key = keys.snapshot(self.realm.account_id, table.value.resource_id.id, request.snapshot_id)
        snapshot = self.realm.all(SNAPSHOT).require(key, name=str(request.snapshot_id))
        checks = tuple(Check(each.key, expect=each.version) for each in (table.pointer, snapshot.pointer))
        return Target(table.value.resource_id, request.snapshot_id, key=request.idempotency.key.strip(), checks=checks)

    def _next(self, target: Target, request: Q) -> Target:
        account = request.table_id.account_id or self.realm.account_id
        named = v1.ResourceId(account_id=account, id=request.table_id.id, kind=v1.RK_TABLE)
        if (named, request.snapshot_id) != (target.table_id, target.snapshot_id):
            raise failure(InvalidArgument, "stats.inconsistent.target")
        key = request.idempotency.key.strip()
        if key and target.key and key != target.key:
            raise failure(InvalidArgument, "idempotency.inconsistent.key", first=target.key, second=key)
        return replace(target, key=target.key or key)
