"""What the metastore already knows about a table: its snapshots, counts and profile, as intervals that contain the true values.

The properties `quality.*` of statistics say how reliable a figure is (docs/statistics.md). With deleted rows, a count of column
statistics is an upper limit, and a smallest or largest value may be gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from skiway.errors import NotFound
from skiway.metastore import statistics
from skiway.metastore.quality.verdicts import VERDICTS, ColumnFacts, Interval, TableFacts, read_verdicts
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import snapshots
from skiway.metastore.statistics.bounds import LogicalType, bound, logical_type
from skiway.model import v1

MOST_REWRITES: Final = 20
"""How many snapshots that only rewrite files are looked through for verdicts."""

EXACT: Final = "exact"
ESTIMATE: Final = "estimate"
NO_PROFILE: Final = (
    "the table has no profile of its current snapshot: run skiway stats profile, or wait for the next profile"
)
OTHER_NAMES: Final = {"timestamp_ns": "timestamp", "timestamptz_ns": "timestamptz"}


def known_facts(realm: Realm, table: v1.Table) -> tuple[TableFacts, int | None]:
    """What is known about the current snapshot of a table, and the id of that snapshot."""
    table_id, schema = table.resource_id.id, column_types(table.schema_json)
    current = snapshots.current(realm, table_id)
    if current is None:
        none = Interval(0, 0) if table.metadata_location else None
        return TableFacts(
            schema, rows=none, unmeasured="the table has no snapshot yet: write to it, or synchronise it"
        ), None
    snapshot = current.value
    created = snapshot.upstream_created_at if snapshot.HasField("upstream_created_at") else snapshot.ingested_at
    stats = statistics.table_statistics(realm, table_id, snapshot.snapshot_id)
    rows = None if stats is None else _rows(stats)
    has_previous = snapshot.HasField("parent_snapshot_id")
    before = statistics.table_statistics(realm, table_id, snapshot.parent_snapshot_id) if has_previous else None
    return (
        TableFacts(
            schema,
            age=realm.clock() - created.ToDatetime(realm.clock().tzinfo),
            rows=rows,
            rows_before=None if before is None else _rows(before),
            has_previous=has_previous,
            columns=_columns(realm, table, snapshot.snapshot_id, rows, schema),
            unmeasured=NO_PROFILE if stats is None or not _is_profiled(stats) else "",
            expectations=read_verdicts(_judged_summary(realm, table_id, snapshot)),
        ),
        snapshot.snapshot_id,
    )


def _judged_summary(realm: Realm, table_id: str, snapshot: v1.Snapshot) -> Mapping[str, str]:
    """The summary with verdicts on the rows of a snapshot. Compaction and the like do not change the rows."""
    for _ in range(MOST_REWRITES):
        if VERDICTS in snapshot.summary or snapshot.summary.get("operation") != "replace":
            break
        try:
            parent = v1.SnapshotRef(snapshot_id=snapshot.parent_snapshot_id)
            snapshot = snapshots.resolve(realm, table_id, parent).value
        except NotFound:
            break
    return snapshot.summary


def _is_profiled(stats: v1.TableStats) -> bool:
    """Whether all data files are profiled."""
    return not statistics.lacks_profiles(stats, default=0) and statistics.OTHER_FORMATS not in stats.properties


def column_types(schema_json: str) -> dict[str, str]:
    """The types of the columns by name, as in Iceberg's JSON format; nested types are JSON."""
    try:
        fields = json.loads(schema_json)["fields"]
        return {str(field["name"]): _text(field["type"]) for field in fields}
    except (ValueError, TypeError, LookupError):
        return {}


def type_of(column_type: str) -> LogicalType | None:
    """The type in which values of a column are compared; None if they are nested, or have no order."""
    if column_type.startswith("fixed"):
        return logical_type("binary")
    try:
        found = logical_type(OTHER_NAMES.get(column_type, column_type))
    except ValueError:
        return None
    return found if found.ordered else None


def _text(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found, sort_keys=True, separators=(",", ":"))


def _rows(stats: v1.TableStats) -> Interval:
    """The number of rows. A bound includes deleted rows, and an estimate lacks the rows of some files."""
    quality = stats.properties.get("quality.row_count", EXACT)
    return Interval(stats.row_count if quality == EXACT else 0, None if quality == ESTIMATE else stats.row_count)


def _columns(
    realm: Realm, table: v1.Table, snapshot_id: int, rows: Interval | None, schema: Mapping[str, str]
) -> dict[str, ColumnFacts]:
    found = {}
    for stats in statistics.present_column_statistics(realm, table, snapshot_id):
        kind = type_of(schema.get(stats.column_name, ""))
        if kind is not None:
            found[stats.column_name] = _column(stats, rows, kind)
    return found


def _column(stats: v1.ColumnStats, rows: Interval | None, kind: LogicalType) -> ColumnFacts:
    quality = {
        name.removeprefix("quality."): value for name, value in stats.properties.items() if name.startswith("quality.")
    }
    counts = quality.get("value_count", EXACT) == EXACT
    nulls = statistics.counted_nulls(stats)
    is_empty = counts and (not stats.value_count or nulls == stats.value_count)
    is_whole = counts and stats.properties.get("rows.profiled") == stats.properties.get("rows.total")
    values, is_complete = _values(stats, quality, nulls)
    return ColumnFacts(
        kind,
        null_share=Interval(0.0, 1.0)  # a sample decides nothing
        if nulls is None and stats.HasField("null_count")
        else _null_share(stats.value_count, nulls, rows, is_exact=counts and quality.get("null_count", EXACT) == EXACT),
        distinct=Interval(0, 0) if is_empty else _distinct(stats, kind),
        least=_bound(stats.min, kind, is_exact=quality.get("min") == EXACT, is_least=True)
        if stats.HasField("min")
        else None,
        most=_bound(stats.max, kind, is_exact=quality.get("max") == EXACT, is_least=False)
        if stats.HasField("max")
        else None,
        quantiles=_quantiles(stats, kind) if is_whole else {},
        rank_error=0.0 if quality.get("quantiles") == EXACT else float(stats.properties.get("quantiles.rank_error", 1)),
        values=values,
        is_complete=is_complete,
        is_sure=counts,
    )


def _null_share(values: int, nulls: int | None, rows: Interval | None, *, is_exact: bool) -> Interval | None:
    if nulls is None:
        return None
    if is_exact:
        share = nulls / values if values else 0.0
        return Interval(share, share)
    left = rows.low if rows is not None and rows.low else 0  # all deleted rows may have had a value
    return Interval(0.0, min(1.0, nulls / left) if left else 1.0)


def _distinct(stats: v1.ColumnStats, kind: LogicalType) -> Interval | None:
    mode = stats.ndv.WhichOneof("mode")
    if mode is None:
        return None
    found = _estimated(stats.ndv.approx) if mode == "approx" else Interval(stats.ndv.exact, stats.ndv.exact)
    # Before version 1, the empty value was not counted. It is the smallest one.
    may_lack_one = kind.name in ("STRING", "BINARY") and not stats.min and statistics.is_older(stats, 1)
    return replace(found, high=found.high + 1) if may_lack_one and found.high is not None else found


def _estimated(found: v1.NdvApprox) -> Interval:
    """Twice as wide as the confidence interval of the estimate: four standard deviations, so it practically never fails.

    An estimate beyond the number of rows was reduced to it, and the lower end of its interval as well.
    """
    error = max(2 * (found.estimate - found.confidence_lower), 4 * found.relative_standard_error * found.estimate)
    low = max(0.0, found.estimate - error)
    if not found.HasField("confidence_upper"):
        return Interval(low, None)
    return Interval(low, found.estimate + 2 * (found.confidence_upper - found.estimate))


def _bound(text: str, kind: LogicalType, *, is_exact: bool, is_least: bool) -> Interval:
    """The smallest or largest value. If it is only a bound, the value may be further inside."""
    value = bound(kind, text).value
    if is_exact:
        return Interval(value, value)
    return Interval(value, None) if is_least else Interval(None, value)


def _quantiles(stats: v1.ColumnStats, kind: LogicalType) -> dict[float, Any]:
    """The values at known ranks: those of the profile, and the bounds of the histogram's buckets.

    Rounded ones decide nothing. Before version 1, any number that is not a double may have been rounded.
    """
    if "quantiles.rounded" in stats.properties or (
        kind.name not in ("FLOAT", "DOUBLE") and statistics.is_older(stats, 1)
    ):
        return {}
    found = {
        float(rank): bound(kind, text).value
        for rank, text in json.loads(stats.properties.get("quantiles", "{}")).items()
    }
    total, below = sum(stats.histogram.counts), 0
    if found and stats.properties.get("quality.histogram") != EXACT and total:
        for count, text in zip(stats.histogram.counts, stats.histogram.bounds[1:], strict=False):
            below += count
            found.setdefault(below / total, bound(kind, text).value)
    return found


def _values(stats: v1.ColumnStats, quality: Mapping[str, str], nulls: int | None) -> tuple[list[str] | None, bool]:
    """The frequent values, and whether there are no others: then their counts add up to the number of values."""
    if "top_values" not in stats.properties:
        return None, False
    pairs = json.loads(stats.properties["top_values"])
    counted = sum(count for _, count in pairs)
    is_complete = quality.get("top_values") == EXACT and nulls is not None and counted == stats.value_count - nulls
    return [value for value, _ in pairs], is_complete
