"""A migration in two steps for tests: the values of all pointers below `/things/` change from `old` to `mid` to `new`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from skiway.errors import Conflict
from skiway.metastore.migrations import Step
from skiway.security import SecretsStore
from skiway.storage import ABSENT, PointerStore, StoreFormat, Stores

THINGS = 3
OLD, NEW = StoreFormat(1), StoreFormat(3)


def converting(before: str, after: str) -> Callable[[Stores, SecretsStore], None]:
    def run(stores: Stores, _: SecretsStore) -> None:
        for found in stores.pointers.scan("/things/"):
            if found.blob_uri == before:
                with suppress(Conflict):
                    stores.pointers.compare_and_set(found.key, after, expect=found.version)

    return run


STEPS = (
    Step(3, "from mid to new", converting("mid", "new"), online=False),
    Step(2, "from old to mid", converting("old", "mid"), online=True),
)


def fill(pointers: PointerStore) -> None:
    """Make an empty store one of format 1."""
    pointers.change_format(pointers.format(), OLD)
    for number in range(THINGS):
        pointers.compare_and_set(f"/things/{number}", "old", expect=ABSENT)


def state(pointers: PointerStore) -> tuple[StoreFormat, list[tuple[str, int]]]:
    """The format, and the values and versions of all things."""
    return pointers.format(), [(found.blob_uri, found.version) for found in pointers.scan("/things/")]


DONE = (NEW, [("new", 3)] * THINGS)
"""Every thing was changed exactly twice."""
