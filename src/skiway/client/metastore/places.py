"""The names of catalogs and namespaces whose ids are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from skiway.client.metastore.calls import Calls
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Place", "Places"]


@dataclass(frozen=True)
class Place:
    """A catalog or namespace that others are in; all of these share one lookup of its path."""

    calls: Calls
    id: v1.ResourceId

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of its full name, the catalog's first."""
        if self.id.kind == v1.RK_CATALOG:
            catalog = self.calls.ask(v1.LookupCatalogRequest(resource_id=self.id), v1.LookupCatalogResponse)
            found: tuple[str, ...] = (catalog.display_name,)
        else:
            answer = self.calls.ask(v1.LookupNamespaceRequest(resource_id=self.id), v1.LookupNamespaceResponse)
            found = (answer.ref.catalog, *answer.ref.path, answer.ref.name)
        if not found[0]:
            kind = "catalog" if self.id.kind == v1.RK_CATALOG else "namespace"
            raise NotFound(
                f"there is no {kind} {self.id.id} any more: what was in it is gone with it", key=kind, id=self.id.id
            )
        return found


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one listing."""

    calls: Calls
    _known: dict[str, Place] = field(default_factory=dict, init=False)

    def of(self, id: v1.ResourceId) -> Place:  # noqa: A002 - it is one
        """The place with this id, the same one each time."""
        return self._known.setdefault(id.id, Place(self.calls, id))
