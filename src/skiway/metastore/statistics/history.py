"""The history of a table's statistics: how counts, bounds, quantiles and frequent values of columns change over time.

A profile adds the statistics of its snapshot, without histograms and sketches. They stay when the snapshot expires, so the history
is longer than that of the table. It is bounded: the oldest snapshots are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from skiway.errors import AlreadyExists, Contention, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import SNAPSHOT, Kind
from skiway.metastore.records.parents import inside
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, sliced
from skiway.metastore.records.updates import copied, retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.statistics.api import (
    PROFILE_VERSION,
    defaulted_fields,
    field_names,
    is_row_bound,
    refuse_restricted,
    renamed,
    without_outdated,
)
from skiway.model import v1

__all__ = ["add_to_history", "list_history", "statistics_history"]

MAX_SNAPSHOTS: Final = 100
MAX_BYTES: Final = 2 << 20
MAX_TOP_VALUES: Final = 8
PAGE: Final = 20
_KEPT: Final = ("quantiles", "quantiles.rank_error", "counted", "rows.profiled", "rows.total", PROFILE_VERSION)


def add_to_history(realm: Realm, stats: v1.TableStats, columns: Iterable[v1.ColumnStats]) -> None:
    """Add the statistics of a profiled snapshot. If they are there already, nothing changes."""
    table_id, snapshot_id = stats.table_id, stats.snapshot_id
    snapshot = realm.all(SNAPSHOT).named(keys.snapshot(realm.account_id, table_id.id, snapshot_id))
    entry = v1.ProfiledSnapshot(
        snapshot_id=snapshot_id,
        created_at=snapshot.upstream_created_at if snapshot else None,
        profiled_at=realm.now(),
        row_count=stats.row_count,
        row_count_is_bound=is_row_bound(stats),
        columns=map(_shortened, columns),
    )
    retrying(lambda: _add(realm, table_id, entry))


def statistics_history(realm: Realm, table_id: str) -> Sequence[v1.ProfiledSnapshot]:
    """The statistics of all profiled snapshots that are known, the newest snapshot first, under the present names of columns."""
    found = _repository(realm, table_id).named(keys.statistics_history(realm.account_id, table_id))
    if found is None:
        return ()
    schema = hierarchy.table(realm, v1.ResourceId(id=table_id)).value.schema_json
    return [_named_as_now(each, schema) for each in reversed(found.snapshots)]


def _named_as_now(snapshot: v1.ProfiledSnapshot, schema_json: str) -> v1.ProfiledSnapshot:
    """The statistics under the present names of the columns, without dropped ones; as they are if no column has an id of the table."""
    names, known = field_names(schema_json), without_outdated(snapshot.columns, defaulted_fields(schema_json))
    if len(known) == len(snapshot.columns) and all(names.get(each.column_id) == each.column_name for each in known):
        return snapshot
    kept = [renamed(each, names) for each in known if each.column_id in names] or list(known)
    shown = copied(snapshot)
    del shown.columns[:]
    shown.columns.extend(kept)
    return shown


def list_history(realm: Realm, request: v1.ListStatisticsHistoryRequest) -> v1.ListStatisticsHistoryResponse:
    """List the statistics of profiled snapshots, the newest first."""
    table_id = hierarchy.table(realm, request.table_id).value.resource_id.id
    refuse_restricted(realm, table_id, by_masks=False)  # the repository leaves out masked columns
    found = statistics_history(realm, table_id)
    places = {id(each): f"{place:06d}" for place, each in enumerate(found)}
    key = keys.statistics_history(realm.account_id, table_id)
    shown, page = sliced(found, request.page, listing=key, name=lambda each: places[id(each)], default=PAGE)
    return v1.ListStatisticsHistoryResponse(
        snapshots=[_only(each, request.columns) for each in shown] if request.columns else shown, page=page
    )


def _only(snapshot: v1.ProfiledSnapshot, columns: Iterable[str]) -> v1.ProfiledSnapshot:
    wanted, shown = set(columns), copied(snapshot)
    del shown.columns[:]
    shown.columns.extend(each for each in snapshot.columns if each.column_name in wanted)
    return shown


def _shortened(column: v1.ColumnStats) -> v1.ColumnStats:
    """The statistics of a column without what is large, and without the ids that all columns share."""
    short = copied(column)
    for field in ("table_id", "snapshot_id", "upstream", "histogram", "tdigest", "properties"):
        short.ClearField(field)
    del short.ndv.sketches[:]
    for name, text in column.properties.items():
        if name in _KEPT or name.startswith("quality."):
            short.properties[name] = text
    if top := json.loads(column.properties.get("top_values", "[]")):
        short.properties["top_values"] = json.dumps(top[:MAX_TOP_VALUES], ensure_ascii=False)
    return short


def _add(realm: Realm, table_id: v1.ResourceId, entry: v1.ProfiledSnapshot) -> None:
    table = hierarchy.table(realm, table_id)
    repository = _repository(realm, table_id.id)
    current = repository.find(keys.statistics_history(realm.account_id, table_id.id))
    known = list(current.value.snapshots) if current else []
    others = [each for each in known if each.snapshot_id != entry.snapshot_id]
    if any(_same(each, entry) for each in known):
        return
    history = v1.StatisticsHistory(table_id=table.value.resource_id, updated_at=realm.now())
    history.snapshots.extend(
        sorted((*others, entry), key=lambda each: each.created_at.ToNanoseconds())[-MAX_SNAPSHOTS:]
    )
    while len(history.snapshots) > 1 and history.ByteSize() > MAX_BYTES:
        del history.snapshots[0]
    also = inside(table.pointer)
    try:
        if current is None:
            repository.create(history, also=lambda _: also)
        else:
            repository.update(current, history, also=lambda _: also)
    except (AlreadyExists, NotFound, PreconditionFailed) as error:
        raise Contention(f"the statistics of table {table_id.id} were changed by others: {error}") from None


def _same(one: v1.ProfiledSnapshot, other: v1.ProfiledSnapshot) -> bool:
    known = copied(one)
    known.profiled_at.CopyFrom(other.profiled_at)
    return known == other


def _repository(realm: Realm, table_id: str) -> Repository[v1.StatisticsHistory]:
    key = keys.statistics_history(realm.account_id, table_id)
    return realm.all(
        Kind("statistics_history", v1.StatisticsHistory, title=lambda of: of.table_id.id, key=lambda _: key)
    )
