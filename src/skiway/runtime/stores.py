"""The stores that the settings mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from skiway.config import Settings, store_urls
from skiway.errors import Unavailable
from skiway.metastore.graph import remembering
from skiway.storage import OnCall, Stores, open_blobs, open_pointers

__all__ = ["stores_of"]


@contextmanager
def stores_of(settings: Settings, home: Path, *, on_call: OnCall | None = None) -> Iterator[Stores]:
    """The stores that the settings mean, with what was read kept in memory. Makes the home when it is missing."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"the home {home} cannot be made: {error.strerror}; choose another with --home") from error
    urls = store_urls(settings, home)
    with ExitStack() as parts:
        pointers = parts.enter_context(open_pointers(urls.pointers, on_call=on_call, options=urls.pointer_options))
        blobs = parts.enter_context(open_blobs(urls.blobs, on_call=on_call, options=urls.blob_options))
        yield remembering(Stores(pointers, blobs), max_blobs=settings.metadata.graph.cache_max_size)
