"""What a misspelled name was meant to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Final

from skiway.errors import NotFound, SkiwayError

if TYPE_CHECKING:
    from skiway.client import Metastore

__all__ = ["nearest", "with_nearest"]

LOOKED_AT: Final = 1000
SHOWN: Final = 3


def with_nearest(lake: Metastore, error: NotFound) -> NotFound:
    """The same error, with names that exist and look like the one that does not."""
    beside = BESIDE.get(error.key)
    if beside is None:
        return error
    asked, names = "", []
    with suppress(SkiwayError, KeyError):  # the first error says enough
        asked, found = beside(lake, error.params)
        names = nearest(asked, islice(found, LOOKED_AT))
    if not names:
        return error
    told = NotFound(f"{error.message}; there is {', '.join(names)}", key=error.key)
    told.params = error.params
    return told


def nearest(asked: str, names: Iterable[str]) -> list[str]:
    """The names that look like the one asked for, or else the first ones there are."""
    known = list(names)
    lower = {name.lower(): name for name in known}
    close = get_close_matches(asked.lower(), lower, n=SHOWN, cutoff=0.6)
    if close:
        return [lower[name] for name in close]
    return [*known[:SHOWN], "…"] if len(known) > SHOWN else known


Beside = Callable[["Metastore", Mapping[str, str]], tuple[str, Iterable[str]]]


def _catalogs(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    return params["catalog"], (str(each) for each in lake.catalogs())


def _namespaces(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    below = lake.namespaces(params["catalog"], recursive=True)
    return f"{params['catalog']}.{params['path']}", (str(each) for each in below)


def _tables(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    namespace = f"{params['catalog']}.{params['path']}"
    return f"{namespace}.{params['name']}", (str(each) for each in lake.tables(namespace))


def _connectors(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    return params["id"], (each.name for each in lake.connectors())


BESIDE: Final[Mapping[str, Beside]] = {
    "catalog.by.name.missing": _catalogs,
    "namespace.by.path.missing": _namespaces,
    "table.by.name.missing": _tables,
    "connector": _connectors,
}
