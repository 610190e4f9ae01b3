"""Watch the format of the store: a server that has become too old must not write, because a newer one cannot read it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from skiway.errors import SkiwayError
from skiway.storage import FORMAT_VERSION, Stores

__all__ = ["watching_format"]

EVERY_S: Final = 1.0

log = logging.getLogger("skiway.metastore")


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
