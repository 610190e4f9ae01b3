"""Stores in which others act at a chosen moment, and stores with small batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from skiway.storage import Check, Clock, OnCall, Operation, Pointer, PointerStore, Put, StoreFormat


class RacedPointers(PointerStore):
    """The pointers of another store. Tests may set `max_batch`."""

    def __init__(self, inner: PointerStore, *, clock: Clock, on_call: OnCall | None = None) -> None:
        super().__init__(clock=clock, on_call=on_call)
        self._inner = inner
        self._plans: list[tuple[str, Callable[[], object]]] = []
        self.max_batch = inner.max_batch  # type: ignore[misc]

    def before_writing(self, prefix: str, act: Callable[[], object]) -> None:
        """Call `act` once, right before the next batch that writes a key with this prefix: others were faster."""
        self._plans.append((prefix, act))

    def _apply(self, batch: Sequence[Operation]) -> None:
        written = [operation.key for operation in batch if not isinstance(operation, Check)]
        for plan in self._plans:
            if any(key.startswith(plan[0]) for key in written):
                self._plans.remove(plan)
                plan[1]()
                break
        self._inner._apply(batch)

    def state(self, *, since: float | None = None) -> Hashable | None:
        return self._inner.state(since=since)

    def close(self) -> None:
        self._inner.close()

    def _get(self, key: str) -> Pointer | None:
        return self._inner._get(key)

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        return self._inner._scan(prefix, after=after, limit=limit, now=now)

    def _count(self, prefix: str, *, now: datetime) -> int:
        return self._inner._count(prefix, now=now)

    def _purge(self, limit: int, *, now: datetime) -> int:
        return self._inner._purge(limit, now=now)

    def _snapshot(self) -> Iterator[Pointer]:
        return self._inner._snapshot()

    def _load(self, puts: Iterable[Put]) -> None:
        self._inner._load(puts)

    def _format(self) -> StoreFormat:
        return self._inner._format()

    def _change_format(self, expected: StoreFormat, new: StoreFormat) -> None:
        self._inner._change_format(expected, new)


def meanwhile(factory: Any, prefix: str, act: Callable[[], object]) -> None:
    """Call `act` once, right before the next batch that writes a key with this prefix."""
    assert isinstance(factory.stores.pointers, RacedPointers)
    factory.stores.pointers.before_writing(prefix, act)


def limit_batches(factory: Any, size: int) -> None:
    """Let the store of a factory accept batches of this size only."""
    assert isinstance(factory.stores.pointers, RacedPointers)
    factory.stores.pointers.max_batch = size  # type: ignore[misc]
