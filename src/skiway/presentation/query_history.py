"""The history of queries, as the command line and the explorer show it: its rows, and why a query took long."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.client import AirportClient
from skiway.client.airport.predicates import col
from skiway.presentation.tables import format_size

FAST_MS: Final = 100
MUCH: Final = 0.2
"""The share of the time above which a part of a query is worth a reason."""

COLUMNS: Final = (
    *(
        "query_id",
        "started_at",
        "caller",
        "door",
        "kind",
        "text",
        "outcome",
        "error",
        "duration_ms",
        "queue_ms",
        "plan_ms",
    ),
    *("run_ms", "send_ms", "rows", "bytes", "files_read", "files_pruned", "bytes_read", "tables", "reads"),
)
"""All but the plan, which is large."""


def recent_queries(
    lake: AirportClient,
    *,
    text: str = "",
    caller: str = "",
    kind: str = "",
    since: datetime | None = None,
    slower_than_ms: float = 0,
    limit: int = 100,
) -> list[dict[str, Any]]:
    """The queries that a caller may see, the newest first; with these words in the SQL, a table or the error."""
    rows = lake.scan(("skiway", "query_history"), columns=COLUMNS).read_all()
    kept = pc.greater_equal(rows["duration_ms"], slower_than_ms)
    for name, value in (("caller", caller), ("kind", kind)):
        if value:
            kept = pc.and_(kept, pc.equal(rows[name], value))
    if since is not None:
        kept = pc.and_(kept, pc.greater_equal(rows["started_at"], pa.scalar(since, rows["started_at"].type)))
    found = (row for batch in rows.filter(kept).to_batches(max_chunksize=500) for row in batch.to_pylist())
    words = text.lower().split()
    chosen = (row for row in found if all(word in _searched(row) for word in words))
    return [_decoded(row) for row in islice(chosen, limit)]


def _searched(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, [row["text"], row["error"], *(row["tables"] or ())])).lower()


def query_called(lake: AirportClient, query_id: str) -> dict[str, Any] | None:
    """A query with its plan, as a list of operators; None if there is none, or the caller may not see it."""
    rows = lake.scan(("skiway", "query_history"), where=col("query_id") == query_id).read_all().to_pylist()
    found = [row for row in rows if row["query_id"] == query_id]
    return _decoded(found[0]) if found else None


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: json.loads(row[name]) if row[name] else [] for name in ("reads", "plan") if name in row}}


def reasons(query: Mapping[str, Any]) -> list[str]:
    """Why a query took as long as it did, in sentences, the most important first."""
    total = query["duration_ms"] or 0.0
    if total < FAST_MS:
        return [f"It was fast: {total:.0f} ms."]
    found = sorted(_reasons(query, total), key=lambda each: each[0], reverse=True)
    return [text for share, text in found] or ["Nothing stands out: no part of it took much longer than the others."]


def _reasons(query: Mapping[str, Any], total: float) -> Iterator[tuple[float, str]]:
    def share(name: str) -> float:
        return min(1.0, (query[name] or 0.0) / total)

    if share("queue_ms") > MUCH:
        yield (
            share("queue_ms"),
            f"It waited for {_part(query, 'queue_ms', total)} because as many queries were running as may at a time: "
            "run fewer at once, or ask the operator to raise sql.workers.",
        )
    if share("plan_ms") > MUCH:
        files = sum(each["files"] for each in query["reads"])
        yield (
            share("plan_ms"),
            f"Planning took {_part(query, 'plan_ms', total)}, with {files:,} files in its tables: optimize tables with many small files.",
        )
    if share("send_ms") > MUCH:
        size = "" if query["bytes"] is None else f" ({query['rows']:,} rows, {format_size(query['bytes'])})"
        yield (
            share("send_ms"),
            f"Sending the result{size} took {_part(query, 'send_ms', total)}, which includes waiting for the client: "
            "aggregate, select fewer columns, or add a LIMIT.",
        )
    if share("run_ms") > MUCH:
        yield share("run_ms"), f"Running it took {_part(query, 'run_ms', total)}. {_slowest(query)}".rstrip()
    for number, each in enumerate(query["reads"]):
        if (text := _about(each)) is not None:
            yield 0.1 - number / 1000, text


def _part(query: Mapping[str, Any], name: str, total: float) -> str:
    return f"{query[name]:,.0f} ms, {min(1.0, query[name] / total):.0%} of the time,".replace("%", " %")


def _slowest(query: Mapping[str, Any]) -> str:
    plan = query.get("plan") or []
    measured = sum(each["ms"] for each in plan)
    if not measured:
        return ""
    most = max(plan, key=lambda each: float(each["ms"]))
    return (
        f"Most of it went to {most['name']}: {most['ms'] / measured:.0%} of the work, {most['rows']:,} rows.".replace(
            "%", " %"
        )
    )


def _about(read: Mapping[str, Any]) -> str | None:
    """What stands out in how a table was read."""
    table, files = read["table"], read["files"]
    if read["reader"] == "policies":
        return f"Policies restrict {table}: the server reads its rows and applies them first."
    if files > 1 and read["files_read"] == files:
        size = format_size(read["bytes_read"])
        if read["filter"]:
            return (
                f"All {files:,} files of {table} were read ({size}), because the filter excludes none of them: partition or "
                f"sort the table by the columns in {read['filter'][:100]}."
            )
        return (
            f"All {files:,} files of {table} were read ({size}): the query has no condition on it that excludes files."
        )
    if files > read["files_read"]:
        return f"The filter left {read['files_read']:,} of {files:,} files of {table} to read."
    return None
