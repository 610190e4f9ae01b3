"""Damaged resources: their blob is lost or corrupt, but their pointers still tell their ids and names.

Listings show them with what the keys tell, so that one lost blob does not hide everything else. Such a message has
`damage` set and must not be written. The functions here are the inverse of those in `keys`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.errors import Internal, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.model import v1

DAMAGE: Final[Mapping[str, str]] = {
    "pointer.dangling": "its record is missing in the blob store",
    "blob.corrupt": "its record in the blob store is corrupt",
    "blob.unreadable": "its record in the blob store is unreadable",
}
"""What is wrong with a resource, by the key of the error that reading it raises."""

M = TypeVar("M", bound=Message)
Fields = dict[str, Any]

log = logging.getLogger("skiway.metastore")


def damage_of(error: Internal) -> str | None:
    """What is wrong with the resource whose reading raised this error; None if the error has another cause."""
    return DAMAGE.get(error.key)


def damaged_error(noun: str, name: str, damage: str) -> PreconditionFailed:
    """The error that a resource cannot be used, for callers."""
    return failure(PreconditionFailed, "resource.damaged", resource=noun, name=name, damage=damage)


@contextmanager
def explaining_damage(noun: str, name: str) -> Iterator[None]:
    """Raise `damaged_error` in place of the error that a record is lost or corrupt, which callers would not see."""
    try:
        yield
    except Internal as error:
        damage = damage_of(error)
        if damage is None:
            raise
        raise damaged_error(noun, name, damage) from error


def partial_record(message: type[M], noun: str, keys_of_it: Iterable[str], damage: str) -> M | None:
    """The message of a damaged resource, with what its keys tell; None if that does not include its id."""
    known: Fields = {}
    for key in keys_of_it:
        known |= _fields(noun, [unquote(part) for part in key.split("/")[1:]])
    if not known:
        return None
    _report(noun, next(iter(keys_of_it), ""), damage)
    return message(**known, damage=damage)


@lru_cache(maxsize=1000)
def _report(noun: str, key: str, damage: str) -> None:
    """Log the damage once per process."""
    log.error("the %s at %s is damaged: %s; restore it from a backup, or delete it", noun, key, damage)


def _fields(noun: str, parts: list[str]) -> Fields:
    """The fields that one key of a resource tells; none if it tells nothing."""
    match parts:
        case ["accounts", "by-id", account]:
            return {"resource_id": _id(account, account, v1.RK_ACCOUNT)}
        case ["accounts", "by-name", name]:
            return {"display_name": name}
        case ["accounts", account, "jobs", "by-id", text]:
            return {"account_id": account, "job_id": text}
        case ["accounts", _, "jobs", *_, "any", place]:
            return _created(place)
        case ["accounts", _, "jobs", *_, state, place] if state.isdecimal():
            return {"state": int(state), **_created(place)}
        case ["accounts", account, "grants", "by-object", text, grantee]:
            return {"object_id": v1.ResourceId(account_id=account, id=text), "grantee": grantee}
        case ["accounts", account, "rules", "by-table", table, name]:
            return {"table_id": _id(account, table, v1.RK_TABLE), "display_name": name}
        case ["accounts", account, "tables", table, "snapshots", "by-id", number]:
            return {"table_id": _id(account, table, v1.RK_TABLE), "snapshot_id": int(number)}
        case ["accounts", account, "catalogs", catalog, "namespaces", "by-path", *parents, name] | [
            "accounts",
            account,
            "catalogs",
            catalog,
            "namespaces",
            "by-depth",
            _,
            *parents,
            name,
        ]:
            return {"catalog_id": _id(account, catalog, v1.RK_CATALOG), "parents": parents, "display_name": name}
        case ["accounts", account, "namespaces", namespace, "tables" | "views", "by-name", name]:
            return {"namespace_id": _id(account, namespace, v1.RK_NAMESPACE), "display_name": name}
        case ["accounts", account, _, "by-id", text] if (
            f"RK_{noun.upper()}" in v1.ResourceKind.DESCRIPTOR.values_by_name
        ):
            return {"resource_id": _id(account, text, v1.ResourceKind.Value(f"RK_{noun.upper()}"))}
        case ["accounts", _, _, "by-name", name]:
            return {"display_name": name}
    return {}


def _id(account_id: str, text: str, kind: v1.ResourceKind.ValueType) -> v1.ResourceId:
    return v1.ResourceId(account_id=account_id, id=text, kind=kind)


def _created(place: str) -> Fields:
    created_at = Timestamp()
    created_at.FromMicroseconds(keys.MAX - int(place.partition("-")[0]))
    return {"created_at": created_at}
