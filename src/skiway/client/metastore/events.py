"""Events: every committed change of an account, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from skiway.client.metastore.collection import Area
from skiway.client.metastore.resources import time_of
from skiway.model import v1

__all__ = ["Event", "Events"]


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one object."""

    message: v1.Event

    @property
    def sequence(self) -> int:
        """The position in the feed. Events after it are newer."""
        return self.message.sequence

    @property
    def occurred_at(self) -> datetime:
        """When the change was made."""
        return time_of(self.message.occurred_at)

    @property
    def kind(self) -> str:
        """The kind of the object, such as `table`."""
        return self.message.kind

    @property
    def action(self) -> str:
        """What happened: `created`, `changed`, `renamed`, `committed`, `profiled` or `deleted`."""
        return self.message.action

    @property
    def name(self) -> str:
        """The name of the object; empty if the change did not involve it."""
        return self.message.name

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that became the current one of a table, if one did."""
        return self.message.snapshot_id if self.message.HasField("snapshot_id") else None


class Events(Area):
    """`lake.events`, identified by their position in the feed."""

    def __call__(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the events after a position, up to the newest one. 0 is the beginning of the feed."""
        cursor = after
        while True:
            response = self._calls.rpc("ListEvents", after=cursor, limit=1000)
            yield from map(Event, response.events)
            if response.cursor == cursor:
                return
            cursor = response.cursor

    def newest(self, limit: int = 100) -> tuple[list[Event], int]:
        """Return the newest events, at most 1000, and the position of the end of the feed."""
        response = self._calls.rpc("ListEvents", limit=limit, newest=True)
        return [*map(Event, response.events)], response.cursor

    def watch(self, *, after: int | None = None) -> Iterator[Event]:
        """Yield the events after a position, and wait for more. None is the end of the feed."""
        cursor = self.newest(1)[1] if after is None else after
        while True:
            for response in self._calls.stream(
                v1.WatchEventsRequest(after=cursor, wait_seconds=20), v1.WatchEventsResponse
            ):
                yield from map(Event, response.events)
                cursor = response.cursor
