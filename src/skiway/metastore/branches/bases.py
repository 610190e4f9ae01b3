"""Bases of branches: lists of what a catalog contained at one moment, read from pointers alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skiway.errors import Contention
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import encoded, folded
from skiway.model import v1
from skiway.storage import Pointer, PointerStore, blob_digest

ATTEMPTS: Final = 20
"""How often a catalog is read until it did not change meanwhile."""
_PAGE: Final = 10_000


def collected(pointers: PointerStore, account_id: str, catalog_id: str) -> v1.BranchBase:
    """What the catalog contains, as of one moment: it is read until two readings are equal."""
    before = _read(pointers, account_id, catalog_id)
    for _ in range(ATTEMPTS):
        now = _read(pointers, account_id, catalog_id)
        if now == before:
            return now
        before = now
    raise failure(Contention, "store.contended", what="the catalog")


def _read(pointers: PointerStore, account_id: str, catalog_id: str) -> v1.BranchBase:
    base = v1.BranchBase()
    below = f"{keys.namespace_path(account_id, catalog_id)}/"
    for number, found in enumerate(_scan(pointers, below)):
        namespace = base.namespaces.add(id=_owner_id(found), digest=_digest(found))
        namespace.path.extend(map(keys.decoded, found.key.removeprefix(below).split("/")))
        namespace.is_folded = pointers.get(keys.namespace_fold(account_id, catalog_id, namespace.path)) is not None
        _add_relations(base, pointers, account_id, namespace.id, number)
    return base


def _add_relations(
    base: v1.BranchBase, pointers: PointerStore, account_id: str, namespace_id: str, number: int
) -> None:
    claimed = keys.relation_name(account_id, namespace_id)
    names = {each.key.removeprefix(claimed) for each in _scan(pointers, claimed)}
    for prefix, is_view in ((keys.table_name, False), (keys.view_name, True)):
        below = prefix(account_id, namespace_id)
        for found in _scan(pointers, below):
            name = keys.decoded(found.key.removeprefix(below))
            fold = folded(name)
            base.relations.add(
                namespace=number,
                name=name,
                id=_owner_id(found),
                digest=_digest(found),
                is_view=is_view,
                is_folded=fold != name and encoded(fold) in names,
            )


def _scan(pointers: PointerStore, prefix: str) -> Iterator[Pointer]:
    return pointers.scan(prefix, page_size=_PAGE)


def _owner_id(pointer: Pointer) -> str:
    return keys.decoded(keys.last_segment(keys.owner(pointer)))


def _digest(pointer: Pointer) -> bytes:
    return bytes.fromhex(blob_digest(pointer.blob_uri))
