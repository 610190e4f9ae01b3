"""Where the rows of a table or view come from, and where they go: the direct neighbours, and a graph of more of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skiway.client import Predicate, col
from skiway.foundation.resources import namespace_path, schema_name
from skiway.web.rendering import path_to
from skiway.web.visits import TablePath, Visit, optional

UPSTREAM: Final = 3
DOWNSTREAM: Final = 2
MAX_NODES: Final = 40
KINDS: Final = {"table": "tables", "view": "views"}


def lineage(visit: Visit, origin: str = "") -> dict[str, Any]:
    """The lineage of the table or view that the path names; `origin` is the connector of a mirrored table."""
    reader = _Reader(visit)
    here = tuple(visit.names)
    data = {"sources": reader.sources(here), "targets": reader.targets(here)}
    graph = _Graph()
    graph.add(here, 0, kind=reader.kind_of(here))
    for direction, hops in ((-1, UPSTREAM), (1, DOWNSTREAM)):
        known = data["sources"] if direction < 0 else data["targets"]
        frontier = [here]
        for hop in range(1, hops + 1):
            found = []
            for path in frontier:
                edges = known if path == here else reader.sources(path) if direction < 0 else reader.targets(path)
                found += [each for each in graph.join(path, edges, direction * hop) if each != here]
            frontier = found
    if origin:
        graph.add(("", origin), graph.first - 1, kind="connector", link=path_to("connectors", origin))
        graph.edges.append({"from": _id(("", origin)), "to": _id(here), "columns": []})
    return {**data, "nodes": [*graph.nodes.values()], "edges": graph.edges}


class _Reader:
    """Reads the system tables of lineage and of views, each part at most once."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._views: dict[str, dict[tuple[str, ...], list[tuple[str, ...]]]] = {}

    def sources(self, path: tuple[str, ...]) -> list[dict[str, Any]]:
        """What the rows are made from."""
        views = self._views_of(path[0])
        if path in views:
            return [_edge(self.kind_of(each), each) for each in views[path]]
        place = _place(path)
        where = (col("schema_name") == place.schema) & (col("table_name") == place.name)
        return [
            _edge("table", (each["source_catalog"], *namespace_path(each["source_schema"]), each["source_table"]), each)
            for each in self._rows(path[0], where)
        ]

    def targets(self, path: tuple[str, ...]) -> list[dict[str, Any]]:
        """What is made from the rows, in the same catalog."""
        place = _place(path)
        where = (
            (col("source_catalog") == place.catalog)
            & (col("source_schema") == place.schema)
            & (col("source_table") == place.name)
        )
        found = [
            _edge("table", (path[0], *namespace_path(each["schema_name"]), each["table_name"]), each)
            for each in self._rows(path[0], where)
        ]
        return found + [_edge("view", view) for view, reads in self._views_of(path[0]).items() if path in reads]

    def kind_of(self, path: tuple[str, ...]) -> str:
        return "view" if path in self._views_of(path[0]) else "table"

    def _rows(self, catalog: str, where: Predicate) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            self._visit.airport(catalog).scan(("skiway", "lineage"), where=where).read_all().to_pylist()
        )
        return rows

    def _views_of(self, catalog: str) -> Mapping[tuple[str, ...], list[tuple[str, ...]]]:
        """The views of a catalog, with what each reads."""
        if catalog not in self._views:
            lake = self._visit.airport(catalog)
            rows, _ = optional(lambda: lake.scan(("skiway", "views")).read_all().to_pylist())
            self._views[catalog] = {
                (catalog, *namespace_path(each["schema_name"]), each["view_name"]): [
                    tuple(name.split(".")) for name in each["reads"] or ()
                ]
                for each in rows or ()
            }
        return self._views[catalog]


def _place(path: tuple[str, ...]) -> TablePath:
    catalog, *namespace, name = path
    return TablePath(catalog, schema_name(tuple(namespace)), name)


def _edge(kind: str, path: tuple[str, ...], row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "kind": kind,
        "path": list(path),
        **{key: row[key] if row else None for key in ("writes", "first_day", "last_day")},
        "columns": [
            {"column": column, "sources": sources} for column, sources in (row["columns"] if row else None) or ()
        ],
    }


def _id(path: tuple[str, ...]) -> str:
    return ".".join(path)


@dataclass
class _Graph:
    """Nodes in layers from left to right, with the edges between them."""

    nodes: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    edges: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first(self) -> int:
        return min(int(each["layer"]) for each in self.nodes.values())

    def add(self, path: tuple[str, ...], layer: int, *, kind: str, link: str = "") -> None:
        node = {"id": _id(path), "name": path[-1], "place": ".".join(path[:-1]), "kind": kind, "layer": layer}
        self.nodes[path] = {**node, "link": link or path_to(KINDS[kind], *path), "is_here": layer == 0}

    def join(self, path: tuple[str, ...], edges: list[dict[str, Any]], layer: int) -> Iterator[tuple[str, ...]]:
        """Add the neighbours of a node; yield those that are new."""
        for edge in edges:
            other = tuple(edge["path"])
            if other not in self.nodes and len(self.nodes) >= MAX_NODES:
                continue
            is_new = other not in self.nodes
            if is_new:
                self.add(other, layer, kind=edge["kind"])
            start, end = (other, path) if layer < 0 else (path, other)
            columns = [[source, each["column"]] for each in edge["columns"] for source in each["sources"]]
            line = {"from": _id(start), "to": _id(end), "columns": columns}
            if line not in self.edges:
                self.edges.append(line)
            if is_new:
                yield other
