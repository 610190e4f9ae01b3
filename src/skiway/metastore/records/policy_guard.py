"""What repositories withhold from a caller whom policies restrict.

They hide what would tell about the original rows: file lists, statistics, and counts in snapshots. They also refuse changes,
with which a caller could get around a policy. Code that applies the policies itself reads with `Realm.without_policies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from skiway.metastore.records.policies import NOT_CHANGED, CallerPolicies, Restriction
from skiway.metastore.records.repository import Guard
from skiway.model import v1

__all__ = ["GUARDED", "BothGuards", "PolicyGuard", "columns_of"]

GUARDED: Final = (
    *(v1.Table, v1.View, v1.Namespace),
    *(v1.Snapshot, v1.TableStats, v1.ColumnStatsSet, v1.FileStatsSet, v1.StatisticsHistory),
    *(v1.QualityRule, v1.RuleResults),
)
"""The messages of resources that policies concern."""


def columns_of(check: v1.RuleCheck) -> tuple[str, ...]:
    """The columns whose values a quality rule is about."""
    kind = check.WhichOneof("check")
    if kind == "unique":
        return tuple(check.unique.columns)
    if kind in (None, "row_count", "freshness", "schema"):
        return ()
    return (getattr(check, kind).column,)


@dataclass(frozen=True, slots=True)
class PolicyGuard:
    """Hides what would tell a restricted caller about the original rows, and refuses changes by it."""

    policies: CallerPolicies

    @property
    def sees_everything(self) -> bool:
        """Policies hide no resources, only parts of them."""
        return True

    @property
    def allows_unreadable(self) -> bool:
        """Whether no policy restricts the caller: which objects policies are about may be unknown."""
        return not self.policies.restrict_anything

    def sees(self, value: Message) -> bool:  # noqa: ARG002
        """Policies hide no resources, only parts of them."""
        return True

    def shown(self, value: Message) -> Message | None:
        """The resource without what tells about the original rows."""
        match value:
            case v1.Snapshot():
                return _without_counts(value) if self.policies.of_table(value.table_id.id) else value
            case v1.FileStatsSet():
                return None if self.policies.of_table(value.table_id.id) else value
            case v1.TableStats():
                found = self.policies.of_table(value.table_id.id)
                return value if found is None else None if found.filters else _without_upstream(value)
            case v1.ColumnStatsSet():
                found = self.policies.of_table(value.table_id.id)
                return value if found is None else _without_masked(value, found)
            case v1.StatisticsHistory():
                found = self.policies.of_table(value.table_id.id)
                return value if found is None else _history_without_masked(value, found)
            case v1.QualityRule():
                found = self.policies.of_table(value.table_id.id)
                return value if found is None or not _tells(value.check, found) else None
            case v1.RuleResults():
                found = self.policies.of_table(value.table_id.id)
                return value if found is None else _without_telling(value, found)
        return value

    def require_change(self, *states: Message) -> None:
        """Raise if the caller is restricted on the resource, which was as in the first state.

        It must not bring values that it knows under a mask that shows something computed from them, either.
        """
        for number, state in enumerate(states):
            found = self._restriction(state)
            if found is None:
                continue
            if number and isinstance(state, v1.Table) and not found.computed_columns:
                continue
            raise found.refused(NOT_CHANGED)

    def require_create(self, value: Message) -> None:
        """Raise if the caller is restricted on the table of a snapshot or of statistics. New objects hide nothing."""
        if not isinstance(value, v1.Table | v1.View | v1.Namespace):
            self.require_change(value)

    def _restriction(self, on: Message) -> Restriction | None:
        match on:
            case v1.Table() | v1.View():
                return self.policies.of(on)
            case v1.Namespace():
                return self.policies.of_namespace(on)
            case (
                v1.Snapshot()
                | v1.TableStats()
                | v1.ColumnStatsSet()
                | v1.FileStatsSet()
                | v1.StatisticsHistory()
                | v1.QualityRule()
                | v1.RuleResults()
            ):
                return self.policies.of_table(on.table_id.id)
        return None


@dataclass(frozen=True, slots=True)
class BothGuards:
    """What two guards allow."""

    first: Guard
    second: Guard

    @property
    def sees_everything(self) -> bool:
        """Whether both guards show all resources."""
        return self.first.sees_everything and self.second.sees_everything

    @property
    def allows_unreadable(self) -> bool:
        """Whether both guards allow it."""
        return self.first.allows_unreadable and self.second.allows_unreadable

    def sees(self, value: Message) -> bool:
        """Whether both guards show the resource."""
        return self.first.sees(value) and self.second.sees(value)

    def shown(self, value: Message) -> Message | None:
        """What both guards show of the resource."""
        left = self.first.shown(value)
        return None if left is None else self.second.shown(left)

    def require_change(self, *states: Message) -> None:
        """Raise unless both guards allow the change."""
        self.first.require_change(*states)
        self.second.require_change(*states)

    def require_create(self, value: Message) -> None:
        """Raise unless both guards allow the resource to be created."""
        self.first.require_create(value)
        self.second.require_create(value)


def _without_counts(snapshot: v1.Snapshot) -> v1.Snapshot:
    shown = v1.Snapshot()
    shown.CopyFrom(snapshot)
    for each in ("manifest_list", "metadata_location", "format_metadata", "summary"):
        shown.ClearField(each)
    if "operation" in snapshot.summary:
        shown.summary["operation"] = snapshot.summary["operation"]
    return shown


def _without_upstream(stats: v1.TableStats) -> v1.TableStats:
    """The statistics without the location of the table."""
    shown = v1.TableStats()
    shown.CopyFrom(stats)
    shown.ClearField("upstream")
    return shown


def _without_masked(stats: v1.ColumnStatsSet, restriction: Restriction) -> v1.ColumnStatsSet | None:
    if restriction.filters:
        return None
    shown = v1.ColumnStatsSet(table_id=stats.table_id, snapshot_id=stats.snapshot_id)
    shown.columns.extend(each for each in stats.columns if _is_shown(each, restriction))
    for column in shown.columns:
        column.ClearField("upstream")
    return shown


def _history_without_masked(history: v1.StatisticsHistory, restriction: Restriction) -> v1.StatisticsHistory | None:
    if restriction.filters:
        return None
    shown = v1.StatisticsHistory()
    shown.CopyFrom(history)
    for snapshot, stored in zip(shown.snapshots, history.snapshots, strict=True):
        del snapshot.columns[:]
        snapshot.columns.extend(each for each in stored.columns if _is_shown(each, restriction))
    return shown


def _is_shown(column: v1.ColumnStats, restriction: Restriction) -> bool:
    """Whether a column is not masked. Parts of columns have names and ids of their own, so they are not shown."""
    names = [name for name, number in restriction.columns.items() if number == column.column_id]
    return bool(names) and all(
        restriction.mask_of(name, column.column_id) is None for name in (*names, column.column_name)
    )


def _tells(check: v1.RuleCheck, restriction: Restriction) -> bool:
    """Whether a rule, or its result, tells about original rows that are filtered, or about values that are masked."""
    kind = check.WhichOneof("check")
    if kind in ("freshness", "schema"):
        return False
    if restriction.filters or restriction.missing or kind is None:
        return True
    columns = columns_of(check)
    return any(
        name not in restriction.columns or restriction.mask_of(name, restriction.columns[name]) is not None
        for name in columns
    )


def _without_telling(results: v1.RuleResults, restriction: Restriction) -> v1.RuleResults:
    """The results without those that tell about what is hidden. The last status may come from such a result."""
    shown = v1.RuleResults()
    shown.CopyFrom(results)
    del shown.results[:]
    shown.results.extend(each for each in results.results if not _tells(each.check, restriction))
    shown.ClearField("last_decided")
    return shown
