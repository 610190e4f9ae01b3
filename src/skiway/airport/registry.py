"""The catalogs that a server serves: a set that may change while it runs, or a function that finds them per request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from skiway.airport.catalog import Catalog
from skiway.errors import AlreadyExists, NotFound, Unsupported

CatalogResolver = Callable[[str], Catalog | None]


@runtime_checkable
class Catalogs(Protocol):
    """Finds catalogs by the name that a client attached, and may look at `current_request()`."""

    def find(self, name: str) -> Catalog | None:
        """The catalog, or None."""

    def names(self) -> Sequence[str]:
        """All names, where they can be listed."""


class CatalogSet:
    """Named catalogs. Readers see a whole set at any time; a removed catalog lives on in the calls that hold it."""

    def __init__(self, catalogs: Iterable[Catalog] = ()) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, Catalog] = {}
        for catalog in catalogs:
            self.add(catalog)

    def find(self, name: str) -> Catalog | None:
        """The catalog of that name; a call that names none gets the default one, or the only one."""
        served = self._by_name
        if not name and name not in served and len(served) == 1:
            return next(iter(served.values()))
        return served.get(name)

    def names(self) -> Sequence[str]:
        """All names, sorted."""
        return sorted(self._by_name)

    def add(self, catalog: Catalog) -> None:
        """Serve one more catalog from now on."""
        with self._lock:
            if catalog.name in self._by_name:
                raise AlreadyExists(f"a catalog named {catalog.name!r} is already served; names must be unique")
            self._by_name = {**self._by_name, catalog.name: catalog}

    def remove(self, name: str) -> None:
        """Serve it no longer: calls in flight finish, new ones do not find it."""
        with self._lock:
            if name not in self._by_name:
                raise NotFound(f"no catalog named {name!r} is served here")
            self._by_name = {key: value for key, value in self._by_name.items() if key != name}


class ResolvedCatalogs:
    """Catalogs found by the author's function, which may look at `current_request()`."""

    def __init__(self, resolve: CatalogResolver) -> None:
        self._resolve = resolve

    def find(self, name: str) -> Catalog | None:
        """Whatever the function finds."""
        return self._resolve(name)

    def names(self) -> Sequence[str]:
        """Not to be had from a function."""
        raise Unsupported("this server finds its catalogs per request and cannot list them")


def catalogs_of(given: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs) -> Catalogs:
    """What the `catalogs` argument of a server stands for."""
    if isinstance(given, Catalog):
        return CatalogSet([given])
    if isinstance(given, Catalogs):
        return given
    if callable(given):
        return ResolvedCatalogs(given)
    return CatalogSet(given)
