"""Accounts: who owns catalogs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skiway.client.metastore.collection import KEEP, Area, Keep, Listing, Turn, filled, masked, precondition
from skiway.client.metastore.names import Name
from skiway.client.metastore.references import Ref, account_id, catalog_id, name_ref
from skiway.client.metastore.resources import Account, Catalog, Meta
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Accounts", "Catalogs"]


class Accounts(Area):
    """`lake.accounts`: the platform sees all, anybody else its own. An account is named by its id."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Account]:
        """The accounts, by name."""
        return Listing(self._open, page_size)

    def get(self, account: Ref) -> Account:
        """The account; `NotFound` if there is none."""
        answer = self._calls.ask(v1.GetAccountRequest(account_id=account_id(account)), v1.GetAccountResponse)
        return Account(answer.account, self._calls, answer.meta)

    def find(self, account: Ref) -> Account | None:
        """The account, or None."""
        try:
            return self.get(account)
        except NotFound:
            return None

    def create(
        self,
        name: str,
        *,
        id: str | None = None,  # noqa: A002 - it is one
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Account:
        """A new account, with an `id` by which it is known elsewhere, or a random one."""
        request = v1.CreateAccountRequest(
            spec=filled(v1.AccountSpec, display_name=name, description=description, tags=tags),
            account_id=None if id is None else v1.ResourceId(id=id, kind=v1.RK_ACCOUNT),
            idempotency=self._calls.key(idempotency_key),
        )
        answer = self._calls.ask(request, v1.CreateAccountResponse)
        return Account(answer.account, self._calls, answer.meta)

    def update(
        self,
        account: Ref,
        *,
        name: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
        tags: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Account:
        """The account after what is given was changed; None clears."""
        spec, mask = masked(v1.AccountSpec, display_name=name, description=description, tags=tags)
        request = v1.UpdateAccountRequest(
            account_id=account_id(account),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        answer = self._calls.ask(request, v1.UpdateAccountResponse)
        return Account(answer.account, self._calls, answer.meta)

    def delete(self, account: Ref, *, if_version: int | None = None, if_etag: str | None = None) -> Meta:
        """Delete an account that holds nothing; how it was stored last."""
        request = v1.DeleteAccountRequest(
            account_id=account_id(account), precondition=precondition(if_version, if_etag)
        )
        return Meta.of(self._calls.ask(request, v1.DeleteAccountResponse).meta)

    def _open(self) -> Turn[Account]:
        def turn(page: v1.PageRequest) -> tuple[Sequence[Account], v1.PageResponse]:
            answer = self._calls.ask(v1.ListAccountsRequest(page=page), v1.ListAccountsResponse)
            return [Account(account, self._calls) for account in answer.accounts], answer.page

        return turn


# --------------------
# Catalogs: what an account has, at the top.


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
