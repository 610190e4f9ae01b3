"""What tests of the metastore share: a clock and ids of their own, and short ways to make things."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from skiway.errors import SkiwayError
from skiway.metastore import PLATFORM, Realm, accounts, catalogs
from skiway.model import v1
from skiway.storage import Stores
from storage.homes import Clock

behaviour = pytest.mark.behaviour


class Ids:
    """Ids in order, so that a failing test can be read."""

    def __init__(self, prefix: str = "id") -> None:
        self._numbers = itertools.count(1)
        self._prefix = prefix

    def __call__(self) -> str:
        return f"{self._prefix}-{next(self._numbers):04d}"


@dataclass
class World:
    """One store and the realms in it; account `a1` exists."""

    stores: Stores
    clock: Clock = field(default_factory=Clock)
    ids: Ids = field(default_factory=Ids)

    def __post_init__(self) -> None:
        if not self.stores.pointers.get("/accounts/by-id/a1"):
            self.account("a1")

    @property
    def platform(self) -> Realm:
        return self.realm(PLATFORM)

    @property
    def home(self) -> Realm:
        return self.realm("a1")

    def realm(self, account_id: str) -> Realm:
        return Realm(self.stores, account_id, clock=self.clock, ids=self.ids)

    def account(self, account_id: str) -> v1.Account:
        request = v1.CreateAccountRequest(
            spec=v1.AccountSpec(display_name=f"account {account_id}"), account_id=v1.ResourceId(id=account_id)
        )
        return accounts.create(self.platform, request).account

    def catalog(self, name: str = "lake", **spec: Any) -> v1.Catalog:
        request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name, **spec))
        return catalogs.create(self.home, request).catalog


def mask(*paths: str) -> FieldMask:
    return FieldMask(paths=paths)


def key(text: str) -> v1.IdempotencyKey:
    return v1.IdempotencyKey(key=text)


def names(resources: Iterable[Any]) -> list[str]:
    return [resource.display_name for resource in resources]


def refused(error: type[SkiwayError], error_key: str, **params: str) -> Any:
    """Expects an error of exactly this class and key, with these parameters."""

    def matches(raised: SkiwayError) -> bool:
        return type(raised) is error and raised.key == error_key and params.items() <= raised.params.items()

    return pytest.raises(error, check=matches)
