"""SQL that runs on the server with the rights of the visitor: results as a table, as a chart, and as files."""

from __future__ import annotations

import io
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from skiway.client import AirportClient
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.presentation.results import first_rows, shown_rows
from skiway.presentation.table_records import numeric_position
from skiway.web.visits import Page, Visit

__all__ = ["download", "editor"]

MAX_SHOWN: Final = 200
MAX_DOWNLOADED: Final = 1_000_000
MAX_BARS: Final = 40


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
    shown, is_cut = found[:MAX_SHOWN], found.num_rows > MAX_SHOWN
    chart, no_chart = _chart(shown, is_cut=is_cut)
    return {**shown_rows(shown), "is_cut": is_cut, "limit": MAX_SHOWN, "chart": chart, "no_chart": no_chart}


def _chart(shown: pa.Table, *, is_cut: bool) -> tuple[dict[str, Any] | None, str]:
    """A chart of the last column of numbers by the first column without repeated values, or the reason why there is none.

    It is a line over time or many numbers, and has labelled bars otherwise.
    """
    numbers = [number for number, field in enumerate(shown.schema) if _is_number(field.type)]
    if not numbers or shown.num_rows < 2 or shown.num_columns < 2:
        return None, ""
    value = numbers[-1]
    others = [number for number in range(shown.num_columns) if number != value]
    if is_cut:
        return None, f"the result has more than {MAX_SHOWN} rows"
    labels = [number for number in others if _is_key(shown.column(number))]
    if not labels:
        names = " and ".join(shown.schema.names[number] for number in others[:3])
        return None, f"values of {names} repeat; use GROUP BY for one number per value"
    label = labels[0]
    kind = shown.schema.field(label).type
    is_line = pa.types.is_temporal(kind) or (_is_number(kind) and shown.num_rows > MAX_BARS)
    if not is_line and shown.num_rows > MAX_BARS:
        return None, f"{shown.num_rows} bars are too many; use LIMIT for at most {MAX_BARS}"
    rows = pa.table({"label": shown.column(label), "value": shown.column(value)})
    if is_line:
        rows = rows.sort_by("label")
    points: list[tuple[str, float | None]] = [
        (str(each["label"]), None if each["value"] is None else float(each["value"])) for each in rows.to_pylist()
    ]
    if not all(number is None or math.isfinite(number) for _, number in points):
        return None, f"{shown.schema.names[value]} has values that are infinite or no numbers"
    if is_line and not all(_is_on_axis(name) for name, _ in points):
        is_line = False
        if len(points) > MAX_BARS:
            return None, f"{shown.schema.names[label]} has values that cannot be drawn on an axis"
    return {
        "kind": "line" if is_line else "bars",
        "label": shown.schema.names[label],
        "value": shown.schema.names[value],
        "points": points,
    }, ""


def _is_on_axis(label: str) -> bool:
    position = numeric_position(label)
    return position is not None and math.isfinite(position)


def _is_key(column: pa.ChunkedArray) -> bool:
    """Whether a column has a different value in each row, and no NULL."""
    if pa.types.is_nested(column.type) or column.null_count:
        return False
    return len(set(column.to_pylist())) == len(column)


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
