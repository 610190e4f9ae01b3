"""Doors: the ports of a process, and what is served behind them.

A process opens its doors one after the other and, when told to stop, lets all of them drain at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Door", "opened"]


class Door(Protocol):
    """One port."""

    def start(self) -> Mapping[str, str]:
        """Listen; the addresses to tell clients, by what is served there (`rpc`, `airport`, `http`)."""

    def drain(self) -> None:
        """Take no new calls, and return at once."""

    def close(self) -> None:
        """Wait for the calls that run, no longer than the door's patience after `drain`, and cancel the rest."""


@contextmanager
def opened(doors: Sequence[Door]) -> Iterator[Mapping[str, str]]:
    """All doors, listening; the addresses of all of them."""
    started: list[Door] = []
    addresses: dict[str, str] = {}
    try:
        for door in doors:
            addresses |= door.start()
            started.append(door)
        yield addresses
    finally:
        for door in started:
            door.drain()
        for door in reversed(started):
            door.close()
