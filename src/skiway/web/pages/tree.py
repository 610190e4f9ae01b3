"""The tree on the left side: what is directly in a catalog, branch or namespace, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from starlette.responses import Response

from skiway.client.metastore.collection import Listing
from skiway.errors import InvalidArgument
from skiway.metastore.records.names import BRANCH_MARK
from skiway.web.rendering import json_text
from skiway.web.visits import Visit, optional

PART: Final = 200
Item: TypeAlias = dict[str, Any]


def tree(visit: Visit) -> Response:
    """The members of the lake, of a catalog or branch, or of a namespace; a part of them: `from` is the `next` of the part before."""
    members = _members(visit)
    kind, _, token = visit.query.get("from", "").partition(".")
    if kind and kind not in members:
        raise InvalidArgument(f"from is {kind[:40]!r}: give what the part before has as next", key="query.invalid")
    kinds = list(members)
    left = kinds[kinds.index(kind) if kind else 0 :]
    items, following = list[Item](), ""
    while left and not following:
        found, token = members[left[0]](token)
        items += found
        if token:
            following = f"{left[0]}.{token}"
        elif len(items) >= PART and len(left) > 1:
            following = f"{left[1]}."
        left = left[1:]
    return Response(json_text({"items": items, "next": following or None}), media_type="application/json")


def _members(visit: Visit) -> Mapping[str, Callable[[str], tuple[Iterable[Item], str]]]:
    """What reads a part of the members of each kind, in their order. They are read from the store, so the tree needs no index."""
    path, lake = visit.names, visit.there
    if not path:
        catalogs = lake.catalogs(page_size=PART)
        return {"catalog": partial(_part, catalogs, lambda each: _item("catalog", (each.name,)))}
    below = partial(_part, lake.namespaces(path, page_size=PART), lambda each: _item("namespace", each.path))
    if len(path) == 1:
        own: dict[str, Callable[[str], tuple[Iterable[Item], str]]] = {"namespace": below}
        return own if visit.branch else {"branch": lambda _: (_branches(visit, path[0]), ""), **own}
    views, tables = lake.directory.views_in(path, page_size=PART), lake.directory.tables_in(path, page_size=PART)
    return {
        "namespace": below,
        "view": partial(_part, views, lambda each: _item("view", each.path)),
        "table": partial(_part, tables, lambda each: _item("table", each.path)),
    }


def _part(listing: Listing[Any], shown: Callable[[Any], Item], token: str) -> tuple[Sequence[Item], str]:
    found, following = listing.part(token)
    return [shown(each) for each in found], following


def _branches(visit: Visit, catalog: str) -> list[Item]:
    found, _ = optional(lambda: visit.lake.branches(catalog))
    names = [each.name for each in found or ()]
    return [{"kind": "branch", "name": each, "path": (f"{catalog}{BRANCH_MARK}{each}",)} for each in names]


def _item(kind: str, path: tuple[str, ...]) -> Item:
    return {"kind": kind, "name": path[-1], "path": path}
