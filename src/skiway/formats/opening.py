"""Sources by kind. Further kinds come from packages, as entry points of the group `skiway.sources`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from skiway.errors import InvalidArgument
from skiway.formats.request import SourceRequest
from skiway.formats.source import Source

__all__ = ["KINDS", "open_source"]

KINDS: Final = {
    "iceberg": "skiway.formats.iceberg_sources:open_iceberg",
    "delta": "skiway.formats.delta_sources:open_delta",
    "parquet": "skiway.formats.parquet:open_parquet",
}


def open_source(
    kind: str,
    uri: str,
    *,
    options: Mapping[str, str] | None = None,
    credentials: Mapping[str, str] | None = None,
) -> Source:
    """The source at `uri`: an upstream catalog, a folder of tables, or one table.

    `options` and `credentials` are listed in docs/formats.md. The address is checked before anything is asked of it.
    """
    return _opener(kind)(SourceRequest(kind, uri, dict(options or {}), dict(credentials or {})))


def _opener(kind: str) -> Callable[[SourceRequest], Source]:
    if kind in KINDS:
        module, _, function = KINDS[kind].partition(":")
        opener: Callable[[SourceRequest], Source] = getattr(import_module(module), function)
        return opener
    others: dict[str, EntryPoint] = {each.name: each for each in entry_points(group="skiway.sources")}
    if kind not in others:
        raise InvalidArgument(
            f"there is no kind of source called {kind!r}; there are {', '.join(sorted({*KINDS, *others}))}",
            key="source.kind",
            kind=kind,
        )
    loaded: Callable[[SourceRequest], Source] = others[kind].load()
    return loaded
