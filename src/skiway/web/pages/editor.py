"""SQL that runs on the server with the rights of the visitor: results as a table, as a chart, and as files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from skiway.client import AirportClient
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.presentation.results import TEXTS, first_rows, shown_rows, with_texts
from skiway.presentation.tables import numeric_position
from skiway.web.visits import Page, Visit

MAX_SHOWN: Final = 200
MAX_DOWNLOADED: Final = 1_000_000
MAX_BARS: Final = 40
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
    shown, is_cut = found[:MAX_SHOWN], found.num_rows > MAX_SHOWN
    data = shown_rows(shown)
    chart, no_chart = _chart(shown, data["rows"], is_cut=is_cut)
    return {**data, "is_cut": is_cut, "limit": MAX_SHOWN, "chart": chart, "no_chart": no_chart}


def _chart(shown: pa.Table, rows: Sequence[Sequence[Any]], *, is_cut: bool) -> tuple[dict[str, Any] | None, str]:
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
    labels = [number for number in others if _is_key(shown.column(number).type, [row[number] for row in rows])]
    if not labels:
        names = " and ".join(shown.schema.names[number] for number in others[:3])
        return None, f"values of {names} repeat; use GROUP BY for one number per value"
    label = labels[0]
    kind = shown.schema.field(label).type
    is_line = pa.types.is_temporal(kind) or (_is_number(kind) and shown.num_rows > MAX_BARS)
    if not is_line and shown.num_rows > MAX_BARS:
        return None, f"{shown.num_rows} bars are too many; use LIMIT for at most {MAX_BARS}"
    order = pc.sort_indices(shown.column(label)).to_pylist() if is_line else range(shown.num_rows)
    pairs = [(rows[number][label], rows[number][value]) for number in order]
    points = [(str(name), None if number is None else float(number)) for name, number in pairs]
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


def _is_key(kind: pa.DataType, values: Sequence[Any]) -> bool:
    """Whether a column has a different value in each row, and no NULL."""
    return not pa.types.is_nested(kind) and None not in values and len({str(value) for value in values}) == len(values)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
