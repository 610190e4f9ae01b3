"""The search index of each caller."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from skiway.errors import PermissionDenied
from skiway.presentation.search import Indexes


class Lake:
    """A metastore with one catalog, of which the caller may read neither the feed nor tags."""

    def __init__(self, catalog: str) -> None:
        self._catalog = catalog
        self.policies = SimpleNamespace(tagged=self.events)

    def events(self, **_: int) -> Iterator[Any]:
        raise PermissionDenied("this caller may not read it")

    def catalogs(self) -> list[Any]:
        return [SimpleNamespace(path=(self._catalog,), description=f"the catalog {self._catalog}")]

    def namespaces(self, catalog: Any, **_: Any) -> list[Any]:
        return []


def test_each_caller_finds_only_its_own_objects() -> None:
    indexes = Indexes()
    lakes: dict[str, Any] = {"ada": Lake("secret"), "eve": Lake("public")}
    for _ in range(2):  # the second time, from the index
        found = {
            token: [each.entry.name for each in indexes.of(token, lake).find("catalog")]
            for token, lake in lakes.items()
        }
        assert found == {"ada": ["secret"], "eve": ["public"]}
