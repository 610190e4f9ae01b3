"""The snapshots of a table as a timeline, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from skiway.airport.wire.duckdb_sql import identifier
from skiway.client import col
from skiway.client.metastore import Snapshot, Table
from skiway.errors import InvalidArgument
from skiway.presentation.results import first_rows, shown_rows
from skiway.presentation.tables import ColumnProfile, TableRecord, column_profiles, picked, schema_types
from skiway.web.pages.objects.rows import table_at
from skiway.web.visits import Visit, optional

MAX_SNAPSHOTS: Final = 200
MAX_EVENTS: Final = 1000
MAX_DIFFERENT: Final = 50
CHANGED: Final = {
    "added_rows": "added-records",
    "deleted_rows": "deleted-records",
    "added_files": "added-data-files",
    "deleted_files": "deleted-data-files",
}
"""The figures of a snapshot, by their keys in its summary."""
TOTALS: Final = {"Rows": "total-records", "Files": "total-data-files", "Bytes": "total-files-size"}


def timeline(visit: Visit, found: Table, record: TableRecord) -> dict[str, Any]:
    """The snapshots with who made them. If the query string has `from` and `to`, their comparison, too."""
    every = list(islice(visit.there.snapshots(found), MAX_SNAPSHOTS))
    current, callers = record.snapshot_id, _callers(visit, found)
    names, _ = optional(lambda: _names(visit))
    known = {str(each.id): each for each in every}
    chosen = [visit.query.get(name, "") for name in ("from", "to")]
    compared = None
    if all(chosen):
        if not all(each in known for each in chosen):
            raise InvalidArgument("from and to are ids of snapshots of this table: choose two", key="query.invalid")
        first, last = sorted((known[each] for each in chosen), key=lambda each: -every.index(each))
        compared = _compared(visit, found, record, first, last)
    return {
        "snapshots": [
            {**_snapshot(each, current), "caller": callers.get(each.id, ""), "names": (names or {}).get(each.id) or []}
            for each in every
        ],
        "sizes": [_figure(each, "total-files-size") for each in reversed(every)],
        "rows": _row_counts(visit, found, every),
        "compared": compared,
    }


def _names(visit: Visit) -> dict[int, list[str]]:
    """The branches and tags by the snapshots that they name."""
    path = visit.table_path()
    where = (col("schema_name") == path.schema) & (col("table_name") == path.name)
    columns = ["schema_name", "table_name", "snapshot_id", "names"]
    rows = visit.airport(path.catalog).scan(("skiway", "snapshots"), where=where, columns=columns).read_all()
    return {each["snapshot_id"]: each["names"] for each in rows.to_pylist() if each["names"]}


def _callers(visit: Visit, found: Table) -> dict[int, str]:
    """Who made the snapshots, as far as the newest events tell."""
    newest, _ = optional(lambda: visit.lake.events.newest(MAX_EVENTS)[0])
    return {
        each.snapshot_id: each.caller
        for each in newest or ()
        if each.message.object_id == str(found.id) and each.snapshot_id and each.action in ("created", "committed")
    }


def _snapshot(snapshot: Snapshot, current: int | None) -> dict[str, Any]:
    summary = snapshot.summary
    return {
        **picked(snapshot, "id", "parent_id", "summary", "damage"),
        "at": snapshot.created_at or snapshot.ingested_at,
        "is_current": snapshot.id == current,
        "operation": summary.get("operation", "").lower(),
        **{key: _number(summary, figure) for key, figure in CHANGED.items()},
    }


def _number(summary: Mapping[str, str], key: str) -> int | None:
    text = summary.get(key, "")
    return int(text) if text.isdecimal() else None


def _figure(snapshot: Snapshot, key: str) -> dict[str, Any]:
    at = snapshot.created_at or snapshot.ingested_at
    return {"snapshot_id": snapshot.id, "at": at, "value": _number(snapshot.summary, key)}


def _row_counts(visit: Visit, found: Table, every: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """The rows by snapshot, oldest first. Formats that do not summarize their snapshots have those of profiles."""
    figures = [_figure(each, "total-records") for each in reversed(every)]
    if any(each["value"] is not None for each in figures):
        return figures
    profiled, _ = optional(lambda: {each.snapshot_id: each.row_count for each in visit.there.statistics.history(found)})
    return [{**each, "value": (profiled or {}).get(each["snapshot_id"])} for each in figures]


def _totals(visit: Visit, found: Table, snapshot: Snapshot) -> dict[str, int | None]:
    """How much a snapshot contains, as its summary or else its statistics say."""
    totals = {name: _number(snapshot.summary, key) for name, key in TOTALS.items()}
    if any(each is not None for each in totals.values()):
        return totals
    stats, _ = optional(lambda: visit.there.statistics.find(found, snapshot.id))
    return (
        totals
        if stats is None
        else dict(zip(totals, (stats.row_count, stats.data_file_count, stats.total_size_bytes), strict=True))
    )


def _compared(visit: Visit, found: Table, record: TableRecord, first: Snapshot, last: Snapshot) -> dict[str, Any]:
    """What differs between two snapshots: totals, columns, their statistics, and on request rows."""
    pair = (first, last)
    types = [schema_types(each.schema_json) for each in pair]
    profiles = [{one.name: one for one in optional(partial(_profiles, visit, record, each))[0] or ()} for each in pair]
    names = list(dict.fromkeys((*types[1], *types[0])))
    before, after = (_totals(visit, found, each) for each in pair)
    data = {
        "first": _snapshot(first, record.snapshot_id),
        "last": _snapshot(last, record.snapshot_id),
        "totals": [{"name": name, "first": before[name], "last": after[name]} for name in TOTALS],
        "columns": [
            {
                "name": name,
                "types": [each.get(name) for each in types],
                "facts": [_facts(each.get(name)) for each in profiles],
            }
            for name in names
        ],
        "rows": None,
        "no_rows": "",
    }
    if visit.query.get("rows"):
        data["rows"], data["no_rows"] = optional(lambda: _different_rows(visit, first, last, types))
    return data


def _profiles(visit: Visit, record: TableRecord, snapshot: Snapshot) -> list[ColumnProfile]:
    return list(column_profiles(visit.there, record, snapshot.id))


def _facts(profile: ColumnProfile | None) -> dict[str, Any]:
    if profile is None:
        return {"null_share": None, "distinct": None, "min": None, "max": None}
    return {
        **picked(profile, "null_share", "min", "max"),
        "distinct": profile.distinct.value if profile.distinct else None,
    }


def _different_rows(visit: Visit, first: Snapshot, last: Snapshot, types: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The first rows that only one of the snapshots has, in the columns that both have."""
    columns = ", ".join(identifier(name) for name in types[1] if name in types[0])
    old, new = (f"SELECT {columns} FROM {table_at(visit, each.id)}" for each in (first, last))  # noqa: S608 - names are quoted
    catalog = visit.airport(visit.table_path().catalog)
    found = []
    for title, sql in (
        ("Only in the newer one", f"{new} EXCEPT ALL {old}"),
        ("Only in the older one", f"{old} EXCEPT ALL {new}"),
    ):
        rows = first_rows(catalog, f"{sql} LIMIT {MAX_DIFFERENT}", MAX_DIFFERENT)
        found.append({"title": title, "limit": MAX_DIFFERENT, **shown_rows(rows)})
    return found
