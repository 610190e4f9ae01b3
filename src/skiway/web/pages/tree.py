"""The tree on the left side: what is directly in a catalog or namespace, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from starlette.responses import Response

from skiway.web.rendering import json_text
from skiway.web.visits import Visit

PART: Final = 200
MAX_OFFSET: Final = 1_000_000


def tree(visit: Visit) -> Response:
    """The members of the lake, of a catalog, or of a namespace; a part of them, from the number `from` on."""
    start = visit.number("from", 1, most=MAX_OFFSET) - 1
    found = list(islice(_members(visit), start, start + PART + 1))
    data = {"items": found[:PART], "next": start + PART + 1 if len(found) > PART else None}
    return Response(json_text(data), media_type="application/json")


def _members(visit: Visit) -> Iterator[dict[str, Any]]:
    """Containers first, then tables and views. They are read from the store, so the tree needs no index."""
    path, lake = visit.names, visit.lake
    if not path:
        return (_item("catalog", (each.name,)) for each in lake.catalogs())
    below = (_item("namespace", each.path) for each in lake.namespaces(path))
    if len(path) == 1:
        return below
    tables = lake.directory.tables_in(path, page_size=PART)
    views = lake.directory.views_in(path, page_size=PART)
    return chain(below, (_item("view", each.path) for each in views), (_item("table", each.path) for each in tables))


def _item(kind: str, path: tuple[str, ...]) -> dict[str, Any]:
    return {"kind": kind, "name": path[-1], "path": path}
