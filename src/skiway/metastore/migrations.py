"""Migrations: steps that bring a store from the format of an older version to that of this one, forward only.

To change the format, increase `skiway.storage.format.FORMAT_VERSION` and add a step to `STEPS`. A server watches the format, because one
that has become too old must not write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from skiway.errors import Conflict, PreconditionFailed, SkiwayError
from skiway.metastore.platform import move_signing_key
from skiway.security import SecretsStore
from skiway.storage import FORMAT_VERSION, StoreFormat, Stores

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


STEPS: Final[Sequence[Step]] = (
    Step(
        2, "move the key that signs tickets from the pointer store to the secrets store", move_signing_key, online=True
    ),
)
"""Format 1 is that of all versions before migrations existed."""


EVERY_S: Final = 1.0


@contextmanager
def watching_format(stores: Stores, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Read the format regularly for the duration of the block.

    Once it is newer than this program, all calls to the store fail, so the server is not ready and rejects its callers.
    """
    pointers, stop = stores.pointers, threading.Event()

    def watch() -> None:
        while not stop.wait(every_s):
            try:
                found = pointers.format().version
            except SkiwayError:
                continue  # the store does not answer, so it cannot be written either; readiness reports it
            if found > FORMAT_VERSION:
                reason = (
                    f"the store was migrated to format {found}, but this server reads up to {FORMAT_VERSION}: "
                    "upgrade and restart this server"
                )
                log.error("%s", reason)
                pointers.retire(reason)
                return

    thread = threading.Thread(target=watch, name="format watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
