"""Managed catalogs: those without a connector, so that all they hold was put there by their users.

Engines that read them may not tell upper from lower case, so in a managed catalog names that differ in case only are one
name: whoever writes a namespace, table or view there claims it in its folded form too. What a connector brings in is
named as it is upstream, in any case. Whether a catalog is managed changes only while it is empty, so all that is in a
managed catalog has its claim, and nothing elsewhere has one.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from skiway.metastore import keys
from skiway.metastore.kinds import CATALOG, Kind, folding
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Repository
from skiway.model import v1

__all__ = ["is_managed", "remover", "writer"]

C = TypeVar("C", v1.Namespace, v1.Table, v1.View)


def is_managed(catalog: v1.Catalog) -> bool:
    """Whether no connector fills the catalog."""
    return not catalog.connector_ref


def writer(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which one resource is created or updated; for the next one, take another."""

    @cache
    def managed(catalog_id: str) -> bool:
        return is_managed(realm.all(CATALOG).require(keys.catalog(realm.account_id, catalog_id), name=catalog_id).value)

    return realm.all(folding(kind, managed))


def remover(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which a resource is deleted: with its claim, wherever there is one."""
    return realm.all(folding(kind, lambda _: True))
