"""The SQL workbench: SQL that runs on the server with the rights of the visitor, completion, and results as tables, charts and files.

The page works without JavaScript: it then shows the first rows of a result. Scripts make it an editor with a grid and charts.
"""

from __future__ import annotations

import io
import re
import time
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from skiway.client import AirportClient
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.foundation.resources import schema_name
from skiway.metastore.records.names import BRANCH_MARK
from skiway.presentation.query_history import query_called
from skiway.presentation.results import TEXTS, first_rows, json_values, shown_rows, shown_type, with_texts
from skiway.web.visits import Page, Visit, optional

MAX_SHOWN: Final = 200
MAX_ROWS: Final = 100_000
MAX_BYTES: Final = 64 << 20
"""Of the rows of a result in the browser."""

MAX_DOWNLOADED: Final = 1_000_000
CSV_TEXTS: Final = (*TEXTS, "array", "blob", "list", "map", "struct", "union")
PARQUET_TEXTS: Final = ({*TEXTS} - {"geometry", "time_ns", "timestamp_ns"}) | {"union"}
MAX_SAFE: Final = 2**53
"""Larger whole numbers would be rounded in JavaScript."""

_RUN: Final = re.compile(r"[0-9a-zA-Z-]{8,64}")


def editor(visit: Visit) -> Page:
    """The editor and, if the address contains a query, its first rows. The address can be shared."""
    catalogs = list(_catalogs(visit))
    sql = visit.query.get("sql", "")
    catalog = visit.query.get("catalog") or next(iter(catalogs), "")
    data: dict[str, Any] = {"sql": sql, "catalog": catalog, "catalogs": catalogs, "result": None, "error": ""}
    data |= {"chart": visit.query.get("chart", ""), "run": "", "place": None, "values": None}
    began = time.perf_counter()
    if sql.strip():
        run = data["run"] = uuid.uuid4().hex
        try:
            with visit.clients.editor(visit.visitor, catalog, run) as lake:
                found = first_rows(lake, sql, MAX_SHOWN + 1)
            shown, is_cut = found[:MAX_SHOWN], found.num_rows > MAX_SHOWN
            data["result"] = {**shown_rows(shown), "is_cut": is_cut, "limit": MAX_SHOWN}
            data["values"] = None if is_cut else _result(visit, catalog, shown, began, run)
        except Unauthorized:
            raise
        except SkiwayError as error:
            data |= {"error": error.message, "place": place_of(sql, error.message)}
    return Page("sql.html", "SQL", data, 400 if data["error"] else 200)


def _catalogs(visit: Visit) -> Iterator[str]:
    """The catalogs that queries can run in, each with its branches."""
    for each in visit.lake.catalogs():
        yield each.name
        found, _ = optional(lambda name=each.name: visit.lake.branches(name))  # type: ignore[misc]
        yield from (f"{each.name}{BRANCH_MARK}{branch.name}" for branch in found or ())


def run(visit: Visit) -> Response:
    """Run a query for the editor: its columns and values, and what it took. `cancel` ends another call of the visitor."""
    running, sql, catalog = visit.clients.running, visit.query.get("sql", ""), visit.query.get("catalog", "")
    number = visit.query.get("run", "")
    if not _RUN.fullmatch(number):
        raise InvalidArgument("run is the id of a run: 8 to 64 letters and digits", key="query.invalid")
    key = (visit.visitor.session_id, number)
    if visit.query.get("cancel"):
        if (other := running.pop(key, None)) is not None:
            other.close()  # which also ends a call that begins only now
        return _json({"cancelled": other is not None})
    if not catalog:
        raise InvalidArgument("a query needs a catalog", key="query.invalid")
    lake: AirportClient | None = None
    is_plan, began = bool(visit.query.get("explain")), time.perf_counter()
    try:
        with visit.clients.editor(visit.visitor, catalog, number) as lake:
            running[key] = lake
            if is_plan:
                return _json({"plan": lake.call(("skiway", "explain"), sql).read_all()["plan"][0].as_py()})
            found = first_rows(lake, sql, MAX_ROWS + 1)
    except Unauthorized:
        raise
    except (SkiwayError, ValueError) as error:  # gRPC raises ValueError for a call on a closed channel
        if running.get(key) is not lake:  # the client reports that the stream ended, and not why
            return _json({"error": "You cancelled the query.", "place": None})
        if not isinstance(error, SkiwayError):
            raise
        return _json({"error": error.message, "place": place_of(sql, error.message)})
    finally:
        running.pop(key, None)
    return _json(_result(visit, catalog, found, began, number))


def _result(visit: Visit, catalog: str, found: pa.Table, began: float, run_id: str) -> dict[str, Any]:
    """The first rows of a result, and what it took."""
    ms = (time.perf_counter() - began) * 1000
    facts, _ = optional(lambda: query_called(visit.airport(catalog), run_id))
    known = {name: (facts or {}).get(name) for name in ("bytes_read", "files_read", "files_pruned")}
    is_cut = found.num_rows > MAX_ROWS
    return {**_values(found[:MAX_ROWS]), "is_cut": is_cut, "ms": ms, "run": run_id, **known}


def _values(found: pa.Table) -> dict[str, Any]:
    """The columns of a result with their values, in types that JavaScript has."""
    if found.nbytes > MAX_BYTES:
        raise InvalidArgument(
            f"the first {found.num_rows:,} rows have more than {MAX_BYTES >> 20} MiB: select fewer columns, or add a LIMIT",
            key="sql.too_large",
        )
    types = map(shown_type, found.schema)
    texts = with_texts(found, TEXTS, floats=True)
    columns = [
        {"name": field.name, "type": shown, "is_number": is_number(field.type), "values": _plain(texts.column(place))}
        for place, (field, shown) in enumerate(zip(found.schema, types, strict=True))
    ]
    return {"columns": columns, "rows": found.num_rows}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    of = column.type
    if pa.types.is_integer(of):
        bounds = pc.min_max(column).as_py()
        is_safe = bounds["min"] is None or max(abs(bounds["min"]), abs(bounds["max"])) <= MAX_SAFE
        return list((column if is_safe else column.cast(pa.string())).to_pylist())
    if pa.types.is_string(of) or pa.types.is_boolean(of):
        return list(column.to_pylist())
    if pa.types.is_floating(of) and pc.all(pc.is_finite(column)).as_py() is not False:
        return list(column.to_pylist())
    return list(json_values(column.to_pylist()))


def is_number(kind: pa.DataType) -> bool:
    """Whether the values of a type can be drawn on an axis of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _json(data: Any) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


_PLACE: Final = re.compile(r"\(line (\d+), column (\d+)\)$")
_NAMED: Final = re.compile(r"""["'`]([^"'`\n]+)["'`]|\b(?:name|table|view|function) ([\w.]+)""")


def place_of(sql: str, message: str) -> dict[str, int] | None:
    """Where a query is wrong, as its line and column from 1 on: what the parser said, or the first name of the message in the query."""
    if found := _PLACE.search(message):
        return {"line": int(found[1]), "column": int(found[2])}
    for match in _NAMED.finditer(message):
        parts = (match[1] or match[2]).split(".")
        for start in range(len(parts)):  # the query may name a table without its catalog
            at = re.search(rf"(?<!\w){re.escape('.'.join(parts[start:]))}(?!\w)", sql, re.IGNORECASE)
            if at:
                before = sql[: at.start()]
                return {"line": before.count("\n") + 1, "column": at.start() - before.rfind("\n")}
    return None


# --- completion -------------------------------------------------------------------------------------------------------

MAX_COMPLETED: Final = 50
MAX_TABLES: Final = 8
_NAME: Final = r'(?:"[^"]+"|[A-Za-z_]\w*)'
_READ: Final = re.compile(
    rf"\b(?:from|join|update|into)\s+((?:{_NAME}\.){{0,3}}{_NAME})(?:\s+(?:as\s+)?({_NAME}))?", re.IGNORECASE
)
_WORDS: Final = re.compile(
    "where|on|using|group|order|limit|having|join|left|right|inner|full|cross|union|set|select|qualify|window|asof|natural",
    re.IGNORECASE,
)
"""Words after the name of a table that are not its alias."""


def complete(visit: Visit) -> Response:
    """What may follow in the editor: tables and views by a part of their names, columns of the tables in the query, and functions."""
    text, sql, catalog = (visit.query.get(name, "")[:20_000] for name in ("q", "sql", "catalog"))
    qualifier, _, word = text.rpartition(".")
    columns = list(_columns(visit, sql, catalog))
    if qualifier:
        owner = qualifier.strip('"').casefold()
        own = [each for each in columns if owner in (each["table"].casefold(), each["alias"].casefold())]
        found = [*own, *(each for each in _objects(visit, text, catalog) if not own)]
    else:
        found = [*columns, *_objects(visit, word, catalog), *_functions(word)]
    return _json({"items": found[: MAX_COMPLETED * 8], "columns": columns})


def _columns(visit: Visit, sql: str, catalog: str) -> Iterator[dict[str, Any]]:
    """The columns of the tables that a query names, as far as the visitor sees them. The query need not be complete."""
    seen = set[str]()
    for match in _READ.finditer(sql):
        path = [each.strip('"') for each in re.findall(_NAME, match[1])]
        alias = (match[2] or "").strip('"')
        if len(path) < 2 or ".".join(path) in seen or len(seen) >= MAX_TABLES:
            continue
        seen.add(".".join(path))
        known = _schema(visit, catalog, path) or (_schema(visit, path[0], path[1:]) if len(path) > 2 else None)
        for name, kind in known or ():
            yield {
                "value": name,
                "kind": "column",
                "note": kind,
                "table": path[-1],
                "alias": "" if _WORDS.fullmatch(alias) else alias,
            }


def _schema(visit: Visit, catalog: str, path: list[str]) -> list[tuple[str, str]] | None:
    """The names and types of the columns of a table or view; None if the visitor sees no such table."""
    try:
        table = visit.airport(catalog).table((".".join(path[:-1]), path[-1]))
    except Unauthorized:
        raise
    except SkiwayError:
        return None
    return [(field.name, shown_type(field)) for field in table.schema if b"is_rowid" not in (field.metadata or {})]


def _objects(visit: Visit, text: str, catalog: str) -> list[dict[str, Any]]:
    words = " ".join(re.findall(r"\w+", text))
    if not words:
        return []
    found, _ = optional(lambda: visit.lake.search(words, limit=MAX_COMPLETED, wait_s=0.05))
    return [
        {"value": _written(hit.object.path, catalog), "kind": hit.object.kind, "note": hit.object.kind}
        for hit in found or ()
        if hit.object.kind in ("table", "view")
    ]


def _written(path: tuple[str, ...], catalog: str) -> str:
    """The name of a table in a query whose catalog, or branch of it, is known."""
    from skiway.airport.wire.duckdb_sql import identifier

    names = [*([] if path[0] == catalog.partition(BRANCH_MARK)[0] else [path[0]]), schema_name(path[1:-1]), path[-1]]
    return ".".join(each if re.fullmatch(r"[a-z_][a-z0-9_]*", each) else identifier(each) for each in names)


def _functions(word: str) -> list[dict[str, Any]]:
    start = word.casefold()
    found = [each for each in _all_functions() if each[0].startswith(start)] if start else []
    return [{"value": name, "kind": "function", "note": kind} for name, kind in found[:MAX_COMPLETED]]


@cache
def _all_functions() -> list[tuple[str, str]]:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as database:
        return database.execute(
            "SELECT DISTINCT ON (function_name) function_name, function_type FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') AND function_name ~ '^[a-z]\\w*$' ORDER BY ALL"
        ).fetchall()


def download(visit: Visit) -> Response:
    """The result of a query as CSV or Parquet."""
    sql, catalog, kind = (visit.query.get(name, "") for name in ("sql", "catalog", "format"))
    if kind not in ("csv", "parquet") or not sql.strip() or not catalog:
        raise InvalidArgument(
            "a download needs the parameters sql, catalog and format, which is csv or parquet", key="query.invalid"
        )
    with visit.clients.editor(visit.visitor, catalog, uuid.uuid4().hex) as lake:
        rows = first_rows(lake, sql, MAX_DOWNLOADED)
    sink = io.BytesIO()
    if kind == "csv":
        from pyarrow import csv

        csv.write_csv(with_texts(rows, CSV_TEXTS), sink)
    else:
        from pyarrow import parquet

        parquet.write_table(with_texts(rows, PARQUET_TEXTS), sink)
    media = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}[kind]
    return Response(
        sink.getvalue(), headers={"content-disposition": f'attachment; filename="result.{kind}"'}, media_type=media
    )
