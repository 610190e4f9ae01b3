"""Where a new or moved table or view goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.changes import Keep
from skiway.client.metastore.names import Name
from skiway.client.metastore.references import Ref, name_ref, namespace_of
from skiway.model import v1

__all__ = ["Home", "home_of", "moved"]


@dataclass(frozen=True, slots=True)
class Home:
    """A name in a namespace in a catalog."""

    name: str
    catalog_id: v1.ResourceId
    namespace_id: v1.ResourceId


def home_of(calls: Calls, name: Name, namespace: Ref | None, *, resource: str) -> Home:
    """Where `name` is: a whole name by itself, or a plain one in `namespace`."""
    if namespace is not None and isinstance(name, str):
        plain, place = name, namespace
    else:
        ref = name_ref(name, resource=resource)
        plain, place = ref.name, (ref.catalog, *ref.path)
    found = namespace_of(calls, place)
    return Home(plain, found.catalog_id, found.resource_id)


def moved(calls: Calls, namespace: Ref | Keep) -> dict[str, Any]:
    """The fields that say the new namespace of a table or view; none for one that stays."""
    if isinstance(namespace, Keep):
        return {}
    found = namespace_of(calls, namespace)
    return {"catalog_id": found.catalog_id, "namespace_id": found.resource_id}
