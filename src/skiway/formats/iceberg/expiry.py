"""The expiry of snapshots: which snapshots and refs of a table are no longer needed, and the commit that removes them.

As in Iceberg, each branch keeps its latest snapshots: at least a number of them, and all that are younger than an age. A branch
or tag may set its own limits, and expires as a whole if it has a maximum age; `main` never does. Snapshots that no ref
reaches expire by age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from skiway.clock import Clock
from skiway.errors import InvalidArgument
from skiway.formats.iceberg.commits import Change, Producer
from skiway.formats.iceberg.snapshots import MAIN
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

__all__ = ["Expiry", "ExpiryRules", "expirable", "expire"]

# mypy: disable-error-code="call-arg"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.

_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MIN_COUNT: Final = "history.expire.min-snapshots-to-keep"
_FIVE_DAYS_MS: Final = 5 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """How long snapshots are kept, and how many of each branch at least."""

    max_age_ms: int = _FIVE_DAYS_MS
    min_count: int = 1

    @classmethod
    def of(
        cls, properties: Mapping[str, str], *, max_age_ms: int | None = None, min_count: int | None = None
    ) -> ExpiryRules:
        """The rules of a table with these properties; the arguments take precedence."""
        return cls(
            _number(properties, _MAX_AGE, _FIVE_DAYS_MS) if max_age_ms is None else max_age_ms,
            max(1, _number(properties, _MIN_COUNT, 1)) if min_count is None else max(1, min_count),
        )


@dataclass(frozen=True, slots=True)
class Expiry:
    """The refs and snapshots that expire, and why each other snapshot is kept."""

    refs: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    kept: Mapping[int, str] = field(default_factory=dict)


def expirable(metadata: TableMetadata, rules: ExpiryRules, *, now_ms: int, in_use: Mapping[int, str]) -> Expiry:
    """What expires now. `in_use` are snapshots that somebody reads, with the reasons to keep them."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    refs = [name for name, ref in metadata.refs.items() if _is_over(name, ref, by_id, now_ms)]
    kept: dict[int, str] = {}
    for name, ref in metadata.refs.items():
        if name not in refs:
            for number, reason in _kept_by(name, ref, by_id, rules, now_ms):
                kept.setdefault(number, reason)
    for number, reason in in_use.items():
        if number in by_id:
            kept.setdefault(number, reason)
    reachable = set(_reachable(metadata, by_id, refs))
    for number, each in by_id.items():
        if number not in reachable and now_ms - each.timestamp_ms < rules.max_age_ms:
            kept.setdefault(number, "younger than the maximum age")
    gone = sorted(by_id.keys() - kept.keys(), key=lambda number: (by_id[number].timestamp_ms, number))
    return Expiry(tuple(refs), tuple(gone), kept)


def expire(choose: Callable[[TableMetadata], Expiry]) -> Producer:
    """Remove the refs and snapshots that `choose` returns for the current state of the table; nothing if there are none."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        chosen = choose(metadata)
        return Change((), tuple(_updates(metadata, chosen)))

    return produce


def _updates(metadata: TableMetadata, chosen: Expiry) -> Iterator[TableUpdate]:
    from pyiceberg.table.update import RemovePartitionStatisticsUpdate, RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate

    for name in chosen.refs:
        yield RemoveSnapshotRefUpdate(ref_name=name)
    for each in metadata.partition_statistics:
        if each.snapshot_id in chosen.snapshots:
            yield RemovePartitionStatisticsUpdate(snapshot_id=each.snapshot_id)
    if chosen.snapshots:  # their other statistics are removed with them
        yield RemoveSnapshotsUpdate(snapshot_ids=list(chosen.snapshots))


def _is_over(name: str, ref: SnapshotRef, by_id: Mapping[int, Snapshot], now_ms: int) -> bool:
    """Whether a branch or tag has reached its maximum age, or its snapshot is missing."""
    if name == MAIN:
        return False
    found = by_id.get(ref.snapshot_id)
    limit = ref.max_ref_age_ms
    return found is None or (limit is not None and now_ms - found.timestamp_ms > limit)


def _kept_by(
    name: str, ref: SnapshotRef, by_id: Mapping[int, Snapshot], rules: ExpiryRules, now_ms: int
) -> Iterator[tuple[int, str]]:
    if ref.snapshot_ref_type.value == "tag":
        yield ref.snapshot_id, f"tag {name}"
        return
    at_least = rules.min_count if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
    max_age_ms = rules.max_age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms
    for place, each in enumerate(_ancestors(ref.snapshot_id, by_id)):
        if place == 0:
            yield each.snapshot_id, f"the head of branch {name}"
        elif place < at_least:
            yield each.snapshot_id, f"one of the last {at_least} of branch {name}"
        elif now_ms - each.timestamp_ms < max_age_ms:
            yield each.snapshot_id, "younger than the maximum age"


def _reachable(metadata: TableMetadata, by_id: Mapping[int, Snapshot], expired: list[str]) -> Iterator[int]:
    for name, ref in metadata.refs.items():
        if name not in expired:
            yield from (each.snapshot_id for each in _ancestors(ref.snapshot_id, by_id))


def _ancestors(number: int | None, by_id: Mapping[int, Snapshot]) -> Iterator[Snapshot]:
    """A snapshot and those before it, the latest first."""
    seen: set[int] = set()
    while number is not None and number in by_id and number not in seen:
        seen.add(number)
        yield by_id[number]
        number = by_id[number].parent_snapshot_id


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    found = properties.get(name, str(default))
    if not found.isdecimal():
        raise InvalidArgument(f"property {name} is {found!r}, but must be a number", key="property.invalid")
    return int(found)
