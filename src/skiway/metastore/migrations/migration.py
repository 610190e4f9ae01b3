"""Run the steps of a migration.

The store records its format: a version, and whether the migration to it is complete. A step to version N

1. records version N, incomplete. From now on, older programs reject the store, and servers that run notice within
   seconds that they are too old (`format_watch`).
2. waits until they have noticed, so that nobody writes the old form any more,
3. converts the content of the store,
4. records version N, complete.

Each record is a compare-and-set, and a step leaves alone what it finds converted. So a migration that was killed at any
point continues where it stopped, and two that run at once do the same work twice and end alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from skiway.errors import Conflict, PreconditionFailed
from skiway.security import SecretsStore
from skiway.storage import FORMAT_VERSION, StoreFormat, Stores

__all__ = ["Step", "migrate", "pending_steps", "require_usable", "store_format"]

SETTLE_S: Final = 2.0
"""How long a step waits for servers that are too old; longer than the interval in which they read the format."""

log = logging.getLogger("skiway.metastore")


@dataclass(frozen=True, slots=True)
class Step:
    """One migration step, to format version `to`.

    `run` may be called again after it was interrupted, and by several processes at once. It must convert only content in
    the old form and use compare-and-set. If `online`, servers of this version also work on a store before and during the
    step; they have to write the old form as long as the store has the old version.
    """

    to: int
    title: str
    run: Callable[[Stores, SecretsStore], None]
    online: bool


def store_format(stores: Stores) -> StoreFormat:
    """The format that the store has now."""
    return stores.pointers.format()


def pending_steps(found: StoreFormat, steps: Sequence[Step]) -> Sequence[Step]:
    """The steps that a store with this format still needs, in order."""
    done = found.version if found.complete else found.version - 1
    return [step for step in sorted(steps, key=lambda step: step.to) if step.to > done]


def migrate(
    stores: Stores,
    secrets: SecretsStore,
    steps: Sequence[Step],
    *,
    settle_s: float = SETTLE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Step]:
    """Run all pending steps, and yield each when it is complete."""
    while remaining := pending_steps(found := store_format(stores), steps):
        step = remaining[0]
        incomplete = StoreFormat(step.to, complete=False)
        if found != incomplete:
            try:
                stores.pointers.change_format(found, incomplete)
            except Conflict:
                continue  # another migration was first
        sleep(settle_s)
        step.run(stores, secrets)
        with suppress(Conflict):  # another migration has completed the step
            stores.pointers.change_format(incomplete, StoreFormat(step.to))
        yield step


def require_usable(stores: Stores, steps: Sequence[Step]) -> None:
    """Raise unless servers of this version can work on the store. Log a warning if it should be migrated."""
    found = store_format(stores)
    remaining = pending_steps(found, steps)
    if not remaining:
        return
    state = (
        f"the store has format {found.version}, and this version of Skiway writes format {FORMAT_VERSION}"
        if found.complete
        else f"the migration of the store to format {found.version} is not complete"
    )
    if all(step.online for step in remaining):
        log.warning("%s: run `skiway migrate` after all servers are upgraded", state)
        return
    raise PreconditionFailed(
        f"{state}: stop all servers, make a backup, and run `skiway migrate`",
        key="store.format.older",
        found=str(found.version),
        supported=str(FORMAT_VERSION),
    )
