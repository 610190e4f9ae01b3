"""Objects on which privileges are granted and policies hold: catalogs, namespaces, tables and views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.names import Id, Ref, catalog_id, namespace_id, segments, table_id, view_id
from skiway.errors import InvalidArgument, NotFound
from skiway.model import v1

__all__ = ["ObjectKind", "object_id"]

ObjectKind = Literal["catalog", "namespace", "table", "view"]

_RESOLVE: Final[Mapping[str, Callable[[Calls, Ref], v1.ResourceId]]] = {
    "catalog": catalog_id,
    "namespace": namespace_id,
    "table": table_id,
    "view": view_id,
}


def object_id(calls: Calls, on: Ref, kind: ObjectKind | None = None) -> v1.ResourceId:
    """Return the id of an object. A name of several segments may be that of a table, a view or a namespace."""
    if isinstance(on, Id) and kind is None:
        raise InvalidArgument(f"{on!r} may be the id of anything: give its kind", key="field", field="kind")
    if kind is not None or not isinstance(on, str | list | tuple):
        return _RESOLVE[kind or "table"](calls, on)
    parts = segments(on, resource="object")
    if len(parts) == 1:
        return catalog_id(calls, on)
    found = {}
    for each in ("table", "view", "namespace") if len(parts) > 2 else ("namespace",):
        with suppress(NotFound):
            found[each] = _RESOLVE[each](calls, on)
    if not found:
        raise NotFound(
            f"there is no namespace, table or view {on!r}: check the spelling",
            key="object",
        )
    if len(found) > 1:
        raise InvalidArgument(
            f"{on!r} is the name of a {' and of a '.join(found)}: give the kind of the one that you mean",
            key="field",
            field="kind",
        )
    return next(iter(found.values()))
