"""What the tools of assistants do, with the rights of the caller of each."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from skiway.client import AirportClient
from skiway.client.metastore import Table
from skiway.client.metastore.names import dotted, segments
from skiway.doors import require_at_most
from skiway.errors import InvalidArgument, NotFound, PermissionDenied
from skiway.presentation.open_clients import OpenClients
from skiway.presentation.results import first_rows, json_values, shown_rows
from skiway.presentation.table_records import (
    TableRecord,
    column_comments,
    column_profiles,
    nested_fields,
    profile_facts,
)
from skiway.schema_names import schema_name

__all__ = ["LakeTools"]

MAX_ROWS: Final = 1000
MAX_OBJECTS: Final = 1000
MAX_NAME: Final = 10_000
"""Characters of the name of a table, with its namespaces."""
MAX_TEXT: Final = 1000
"""Characters of a value. Longer values are cut: they would fill the context of an assistant."""


class LakeTools:
    """The tools. `token` is that of the caller; without authentication, it is empty."""

    def __init__(self, clients: OpenClients) -> None:
        self._clients = clients

    def search(self, token: str, text: str, limit: int = 20) -> list[dict[str, Any]]:
        """Catalogs, namespaces, tables and views that match all words of a text, the best first."""
        found = self._clients.metastore(token).search(text, limit=_count(limit, 100))
        return [
            {
                "kind": each.object.kind,
                "name": dotted(each.object.path),
                "found_in": each.found_in,
                "comment": each.object.comment[:MAX_TEXT],
                "format": each.object.format,
                "rows": each.object.rows,
                "rows_are_bound": each.object.rows_are_bound,
            }
            for each in found
        ]

    def describe(self, token: str, name: str) -> dict[str, Any]:
        """A table: its columns with types, comments and statistics, its size, and its snapshot; or a view with its SQL."""
        lake, path = self._clients.metastore(token), _path(name)
        try:
            found = lake.tables.get(path)
        except NotFound as missing:
            try:
                view = lake.views.get(path)
            except NotFound:
                raise missing from None
            texts = {str(each.dialect): each.sql for each in view.message.sql_definitions}
            return {"kind": "view", "name": dotted(path), "comment": view.description or "", "sql": texts}
        record = TableRecord.of(found, {})
        return {
            "kind": "table",
            "name": dotted(path),
            "comment": record.description or "",
            "format": record.format,
            "rows": record.rows,
            "rows_are_bound": record.rows_are_bound,
            "size_bytes": record.size_bytes,
            "data_files": record.data_files,
            "snapshot_id": record.snapshot_id,
            "updated_at": json_values(record.updated_at),
            "columns": self._columns(token, found, record),
            **({"problem": record.problem} if record.problem else {}),
        }

    def _columns(self, token: str, found: Table, record: TableRecord) -> list[dict[str, Any]]:
        comments = column_comments(found)
        try:
            profiles = {each.name: each for each in column_profiles(self._clients.metastore(token), record, None)}
        except (NotFound, PermissionDenied):  # policies withhold statistics from the caller, or there are none
            profiles = {}
        return [
            {
                "name": column.name,
                "type": column.type,
                "required": column.required,
                "comment": comments.get(column.name, ""),
                "statistics": _cut(json_values(profile_facts(profiles.get(column.name)))),
                "fields": {
                    each.name: _cut(json_values(profile_facts(each)))
                    for each in nested_fields(record, profiles, column.name)
                },
            }
            for column in record.columns
        ]

    def sample(self, token: str, name: str, rows: int = 10) -> dict[str, Any]:
        """Some rows of a table or view."""
        catalog, *namespace, table = _path(name)
        with self._catalog(token, catalog).scan(
            (schema_name(tuple(namespace)), table), limit=_count(rows, MAX_ROWS)
        ) as scan:
            return _result(scan.read_all(), rows)

    def query(self, token: str, sql: str, catalog: str = "", max_rows: int = 100) -> dict[str, Any]:
        """The first rows of a query, which runs on the server."""
        most = _count(max_rows, MAX_ROWS)
        return _result(first_rows(self._catalog(token, catalog), sql, most + 1), most)

    def explain(self, token: str, sql: str, catalog: str = "") -> str:
        """The plan of a query, which does not run."""
        found = self._catalog(token, catalog).call(("skiway", "explain"), sql).read_all()
        return str(found["plan"][0].as_py())

    def tables(self, token: str, catalog: str) -> list[dict[str, Any]]:
        """All tables and views of a catalog."""
        _check_name(catalog)
        lake, found = self._clients.metastore(token), list[dict[str, Any]]()
        try:
            while True:
                part = lake.search.below((catalog,), offset=len(found), limit=MAX_OBJECTS)
                found += (
                    {"kind": each.kind, "name": dotted(each.path), "comment": each.comment[:MAX_TEXT]}
                    for each in part.objects
                )
                if len(found) >= part.total or not part.objects:
                    return found
        except NotFound:
            raise NotFound(
                f"there is no catalog {catalog}, or you may not see it: search for its name", key="catalog"
            ) from None

    def _catalog(self, token: str, name: str) -> AirportClient:
        """The catalog with this name, or the first one that the caller can see: queries may read all of them."""
        _check_name(name)
        if not name:
            first = next(iter(self._clients.metastore(token).catalogs(page_size=1)), None)
            if first is None:
                raise NotFound("you can see no catalog: ask for a grant", key="catalog")
            name = first.name
        return self._clients.airport(token, name)


def _check_name(name: str) -> None:
    require_at_most(
        MAX_NAME, len(name), "the name has {} characters", remedy="search for the table", key="name.too_long"
    )


def _path(name: str) -> tuple[str, ...]:
    _check_name(name)
    return tuple(segments(name, resource="table"))


def _count(given: int, most: int) -> int:
    if given < 1:
        raise InvalidArgument(f"{given} rows were requested: request between 1 and {most}", key="rows.invalid")
    return min(given, most)


def _result(rows: pa.Table, most: int) -> dict[str, Any]:
    """Columns and rows. `is_cut` says that there are more rows, or that values were shortened."""
    shown = json_values(shown_rows(rows[:most]))
    cut = _cut(shown)
    return {**cut, "is_cut": rows.num_rows > most or cut != shown}


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[: MAX_TEXT - 1]}…"
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, dict):
        return {key: _cut(each) for key, each in value.items()}
    return value
