"""SQL that runs on the server with the rights of the visitor: results as a table, as a chart, and as files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from starlette.responses import Response

from skiway.client import AirportClient
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.presentation.results import TEXTS, first_rows, shown_rows, with_texts
from skiway.web.visits import Page, Visit

__all__ = ["download", "editor"]

MAX_SHOWN: Final = 200
MAX_DOWNLOADED: Final = 1_000_000
MAX_POINTS: Final = 100
CSV_TEXTS: Final = (*TEXTS, "array", "blob", "list", "map", "struct", "union")
PARQUET_TEXTS: Final = ({*TEXTS} - {"geometry", "time_ns", "timestamp_ns"}) | {"union"}


def editor(visit: Visit) -> Page:
    """The editor and, if the address contains a query, its result. The address can be shared."""
    catalogs = [each.name for each in visit.lake.catalogs()]
    sql = visit.query.get("sql", "")
    catalog = visit.query.get("catalog") or next(iter(catalogs), "")
    data: dict[str, Any] = {"sql": sql, "catalog": catalog, "catalogs": catalogs, "result": None, "error": ""}
    if sql.strip():
        try:
            data["result"] = _result(visit.airport(catalog), sql)
        except Unauthorized:
            raise
        except SkiwayError as error:
            data["error"] = error.message
    return Page("sql.html", "SQL", data, 400 if data["error"] else 200)


def download(visit: Visit) -> Response:
    """The result of a query as CSV or Parquet."""
    sql, catalog, kind = (visit.query.get(name, "") for name in ("sql", "catalog", "format"))
    if kind not in ("csv", "parquet") or not sql.strip() or not catalog:
        raise InvalidArgument(
            "a download needs the parameters sql, catalog and format, which is csv or parquet", key="query.invalid"
        )
    rows = first_rows(visit.airport(catalog), sql, MAX_DOWNLOADED)
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


def _result(lake: AirportClient, sql: str) -> dict[str, Any]:
    found = first_rows(lake, sql, MAX_SHOWN + 1)
    shown = found[:MAX_SHOWN]
    data = shown_rows(shown)
    return {
        **data,
        "is_cut": found.num_rows > MAX_SHOWN,
        "limit": MAX_SHOWN,
        "chart": _chart(shown, data["rows"]),
    }


def _chart(shown: pa.Table, rows: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """A chart chosen from the types: a line over time, bars over text or numbers; None if nothing can be drawn."""
    if shown.num_rows < 2 or shown.num_columns < 2:
        return None
    numbers = [number for number, field in enumerate(shown.schema) if _is_number(field.type)]
    labels = [number for number in range(shown.num_columns) if number not in numbers[-1:]]
    if not numbers or not labels:
        return None
    label, value = labels[0], next((each for each in reversed(numbers) if each != labels[0]), None)
    if value is None:
        return None
    kind = "line" if pa.types.is_temporal(shown.schema.field(label).type) else "bars"
    points = [[str(row[label]), float(row[value])] for row in rows[:MAX_POINTS] if row[value] is not None]
    return {"kind": kind, "label": shown.schema.names[label], "value": shown.schema.names[value], "points": points}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
