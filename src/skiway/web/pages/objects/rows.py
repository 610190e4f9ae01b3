"""Rows of a table or view: a page of them, filtered, sorted, and as of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from skiway.airport.wire.duckdb_sql import identifier, text_literal
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.presentation.results import first_rows, shown_rows
from skiway.web.visits import Visit

ROWS: Final = 50
MAX_ROWS: Final = 1000
MAX_PAGE: Final = 100_000
MAX_FILTERS: Final = 8
MAX_TEXT: Final = 500

OPERATORS: Final[dict[str, tuple[str, Callable[[str, str], str]]]] = {
    "is": ("=", lambda column, value: f"{column} = {value}"),
    "not": ("≠", lambda column, value: f"{column} <> {value}"),
    "less": ("<", lambda column, value: f"{column} < {value}"),
    "most": ("≤", lambda column, value: f"{column} <= {value}"),
    "more": (">", lambda column, value: f"{column} > {value}"),
    "least": ("≥", lambda column, value: f"{column} >= {value}"),
    "contains": (
        "contains",
        lambda column, value: f"contains(lower(CAST({column} AS VARCHAR)), lower({value}))",
    ),
    "null": ("is NULL", lambda column, _: f"{column} IS NULL"),
    "filled": ("is not NULL", lambda column, _: f"{column} IS NOT NULL"),
}
"""How a filter compares: the sign that people see, and the SQL. DuckDB converts the text to the type of the column."""


def preview(visit: Visit, columns: Collection[str]) -> dict[str, Any]:
    """The rows that the query string asks for. Without conditions they are scanned, which needs no query process."""
    limit, page = visit.number("limit", ROWS, most=MAX_ROWS), visit.number("page", 1, most=MAX_PAGE)
    filters = _filters(visit, columns)
    sort = visit.query.get("sort", "")
    if sort and sort.removeprefix("-") not in columns:
        raise _unknown_column(sort)
    data = {"limit": limit, "page": page, "filters": filters, "sort": sort, "error": "", "has_more": False}
    operators = {key: sign for key, (sign, _) in OPERATORS.items()}
    empty: dict[str, Any] = {"columns": [], "rows": []}
    path, sql = visit.table_path(), query_of(visit, filters, sort)
    catalog = visit.airport(path.catalog)
    try:
        if filters or sort or page > 1:
            found = first_rows(catalog, f"{sql} LIMIT {limit + 1} OFFSET {(page - 1) * limit}", limit + 1)
        else:
            with catalog.scan((path.schema, path.name), at_version=visit.at, limit=limit + 1) as rows:
                found = rows.read_all()
    except Unauthorized:
        raise
    except SkiwayError as error:
        if not filters:
            raise
        return {**data, **empty, "error": error.message, "operators": operators, "sql": sql}
    data["has_more"] = found.num_rows > limit
    return {**data, **shown_rows(found[:limit]), "operators": operators, "sql": sql}


def query_of(visit: Visit, filters: list[dict[str, str]], sort: str) -> str:
    """The query for the rows, as people can run it themselves."""
    parts = [f"FROM {table_at(visit, visit.at)}"]
    if filters:
        conditions = (
            OPERATORS[each["operator"]][1](identifier(each["column"]), text_literal(each["value"])) for each in filters
        )
        parts.append("WHERE " + " AND ".join(conditions))
    if sort:
        parts.append(
            f"ORDER BY {identifier(sort.removeprefix('-'))}{' DESC' if sort.startswith('-') else ''} NULLS LAST"
        )
    return " ".join(parts)


def table_at(visit: Visit, snapshot_id: int | None) -> str:
    """The table that the page is about in SQL, in one of its snapshots or as it is now."""
    path = visit.table_path()
    name = f"{identifier(path.schema)}.{identifier(path.name)}"
    return name if snapshot_id is None else f"{name} AT (VERSION => {snapshot_id})"


def _filters(visit: Visit, columns: Collection[str]) -> list[dict[str, str]]:
    """The filters in the query string: `c0`, `o0` and `v0` are the column, the operator and the value of the first."""
    found = []
    for number in range(MAX_FILTERS):
        column, operator = visit.query.get(f"c{number}", ""), visit.query.get(f"o{number}", "is")
        if not column:
            continue
        if column not in columns:
            raise _unknown_column(column)
        if operator not in OPERATORS:
            message = f"{operator[:40]!r} compares nothing: use {', '.join(OPERATORS)}"
            raise InvalidArgument(message, key="query.invalid", field=f"o{number}")
        found.append({"column": column, "operator": operator, "value": visit.query.get(f"v{number}", "")[:MAX_TEXT]})
    return found


def _unknown_column(name: str) -> InvalidArgument:
    return InvalidArgument(f"there is no column {name[:100]!r}: choose one of the table", key="query.invalid")
