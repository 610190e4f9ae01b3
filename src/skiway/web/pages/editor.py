"""SQL that runs on the server with the rights of the visitor: results as a table, as a chart, and as files."""

from __future__ import annotations

import io
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from skiway.client import AirportClient
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.presentation.results import first_rows, shown_rows
from skiway.web.visits import Page, Visit

__all__ = ["download", "editor"]

MAX_SHOWN: Final = 200
MAX_DOWNLOADED: Final = 1_000_000
MAX_POINTS: Final = 100


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

        csv.write_csv(_flat(rows), sink)
    else:
        from pyarrow import parquet

        parquet.write_table(rows, sink)
    media = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}[kind]
    return Response(
        sink.getvalue(), headers={"content-disposition": f'attachment; filename="result.{kind}"'}, media_type=media
    )


def _result(lake: AirportClient, sql: str) -> dict[str, Any]:
    found = first_rows(lake, sql, MAX_SHOWN + 1)
    shown = found[:MAX_SHOWN]
    return {
        **shown_rows(shown),
        "is_cut": found.num_rows > MAX_SHOWN,
        "limit": MAX_SHOWN,
        "chart": _chart(shown),
    }


def _chart(shown: pa.Table) -> dict[str, Any] | None:
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
    cut = shown[:MAX_POINTS]
    points = [
        [str(name), float(number)]
        for name, number in zip(cut.column(label).to_pylist(), cut.column(value).to_pylist(), strict=True)
        if number is not None
    ]
    return {"kind": kind, "label": shown.schema.names[label], "value": shown.schema.names[value], "points": points}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _flat(rows: pa.Table) -> pa.Table:
    """The rows with nested columns as text, which CSV needs."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type):
            text = pa.array([None if each is None else str(each) for each in rows.column(number).to_pylist()])
            rows = rows.set_column(number, field.name, text)
        elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            rows = rows.set_column(number, field.name, pc.cast(rows.column(number), pa.string(), safe=False))
    return rows
