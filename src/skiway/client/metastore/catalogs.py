"""Catalogs: what an account has, at the top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skiway.client.metastore.area import Area
from skiway.client.metastore.changes import KEEP, Keep, filled, masked, precondition
from skiway.client.metastore.listing import Listing, Turn
from skiway.client.metastore.names import Name
from skiway.client.metastore.references import Ref, catalog_id, name_ref
from skiway.client.metastore.resources import Catalog, Meta
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Catalogs"]


class Catalogs(Area):
    """`lake.catalogs`: named by one segment, such as `lake`."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Catalog]:
        """The catalogs of the caller's account, by name."""
        return Listing(self._open, page_size)

    def get(self, catalog: Ref) -> Catalog:
        """The catalog; `NotFound` if there is none."""
        request = v1.GetCatalogRequest(catalog_id=catalog_id(self._calls, catalog))
        answer = self._calls.ask(request, v1.GetCatalogResponse)
        return Catalog(answer.catalog, self._calls, answer.meta)

    def find(self, catalog: Ref) -> Catalog | None:
        """The catalog, or None."""
        try:
            return self.get(catalog)
        except NotFound:
            return None

    def create(
        self,
        name: Name,
        *,
        description: str | None = None,
        connector_ref: str | None = None,
        policy_ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Catalog:
        """A new catalog, with nothing in it."""
        spec = filled(
            v1.CatalogSpec,
            display_name=name_ref(name, resource="catalog").catalog,
            description=description,
            connector_ref=connector_ref,
            policy_ref=policy_ref,
            properties=properties,
        )
        request = v1.CreateCatalogRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        answer = self._calls.ask(request, v1.CreateCatalogResponse)
        return Catalog(answer.catalog, self._calls, answer.meta)

    def update(
        self,
        catalog: Ref,
        *,
        name: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
        connector_ref: str | Keep | None = KEEP,
        policy_ref: str | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Catalog:
        """The catalog after what is given was changed; None clears. `name` is the plain new name."""
        spec, mask = masked(
            v1.CatalogSpec,
            display_name=name,
            description=description,
            connector_ref=connector_ref,
            policy_ref=policy_ref,
            properties=properties,
        )
        request = v1.UpdateCatalogRequest(
            catalog_id=catalog_id(self._calls, catalog),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        answer = self._calls.ask(request, v1.UpdateCatalogResponse)
        return Catalog(answer.catalog, self._calls, answer.meta)

    def delete(
        self, catalog: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a catalog, with all it holds if `cascade`; how it was stored last."""
        request = v1.DeleteCatalogRequest(
            catalog_id=catalog_id(self._calls, catalog),
            require_empty=not cascade,
            precondition=precondition(if_version, if_etag),
        )
        return Meta.of(self._calls.ask(request, v1.DeleteCatalogResponse).meta)

    def _open(self) -> Turn[Catalog]:
        def turn(page: v1.PageRequest) -> tuple[Sequence[Catalog], v1.PageResponse]:
            answer = self._calls.ask(v1.ListCatalogsRequest(page=page), v1.ListCatalogsResponse)
            return [Catalog(catalog, self._calls) for catalog in answer.catalogs], answer.page

        return turn
