"""Stores that crash at a chosen moment, before or after an operation takes effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from skiway.storage import BlobHead, BlobStore, Operation, Pointer, PointerStore, Stores

When = Literal["before", "after"]


class Crashed(BaseException):
    """The process has crashed; a BaseException, so that no error handler continues."""


@dataclass
class CrashPoint:
    """Crashes at operation number `at`, counted from 1; never if it is 0."""

    at: int = 0
    when: When = "before"
    done: int = field(default=0, init=False)

    def run(self, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        self.done += 1
        if self.done == self.at and self.when == "before":
            raise Crashed
        result = operation(*arguments, **keywords)
        if self.done == self.at:
            raise Crashed
        return result


class CrashingPointers(PointerStore):
    def __init__(self, inner: PointerStore, crash_point: CrashPoint) -> None:
        super().__init__(clock=inner._clock)
        self._inner, self._crash_point = inner, crash_point

    def _get(self, key: str) -> Pointer | None:
        return self._crash_point.run(self._inner._get, key)  # type: ignore[no-any-return]

    def _apply(self, batch: Sequence[Operation]) -> None:
        self._crash_point.run(self._inner._apply, batch)

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        return self._crash_point.run(self._inner._scan, prefix, after=after, limit=limit, now=now)  # type: ignore[no-any-return]

    def _count(self, prefix: str, *, now: datetime) -> int:
        return self._crash_point.run(self._inner._count, prefix, now=now)  # type: ignore[no-any-return]

    def _purge(self, limit: int, *, now: datetime) -> int:
        return self._crash_point.run(self._inner._purge, limit, now=now)  # type: ignore[no-any-return]


class CrashingBlobs(BlobStore):
    def __init__(self, inner: BlobStore, crash_point: CrashPoint) -> None:
        super().__init__(clock=inner._clock)
        self._inner, self._crash_point = inner, crash_point

    def _create(self, uri: str, data: bytes) -> bool:
        return self._crash_point.run(self._inner._create, uri, data)  # type: ignore[no-any-return]

    def _overwrite(self, uri: str, data: bytes) -> None:
        self._crash_point.run(self._inner._overwrite, uri, data)

    def _read(self, uri: str) -> tuple[bytes, datetime] | None:
        return self._crash_point.run(self._inner._read, uri)  # type: ignore[no-any-return]

    def _head(self, uri: str) -> BlobHead | None:
        return self._crash_point.run(self._inner._head, uri)  # type: ignore[no-any-return]

    def _delete(self, uri: str) -> None:
        self._crash_point.run(self._inner._delete, uri)

    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        return self._crash_point.run(self._inner._walk, folder, after)  # type: ignore[no-any-return]


def crashing_stores(stores: Stores, crash_point: CrashPoint) -> Stores:
    """The same stores, until the crash point is reached."""
    return Stores(CrashingPointers(stores.pointers, crash_point), CrashingBlobs(stores.blobs, crash_point))
