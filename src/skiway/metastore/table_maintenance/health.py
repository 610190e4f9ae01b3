"""The health of a managed table: its files, deletes, manifests and snapshots, what maintenance would gain, and why.

Each action has a decision: whether it is worth it now, and the reason in words, with the figures that it follows from. The same
rules decide what `optimize`, `expire` and `clean` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Content, data_files, location
from skiway.formats.iceberg.compaction import CompactionRules, FileGroup, unused_deletes
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.states import ManagedTable, load
from skiway.metastore.records.realm import Realm
from skiway.metastore.table_maintenance.cleaning import OrphanReport, remove_orphans
from skiway.metastore.table_maintenance.expiring import ExpiryReport, expire_snapshots
from skiway.metastore.table_maintenance.optimizing import MIN_MANIFESTS, live_manifests, planned_groups
from skiway.model import v1

__all__ = ["table_health"]

_LIMITS: Final = (1 << 20, 16 << 20, 128 << 20, 512 << 20)
_OPEN_COST: Final = "read.split.open-file-cost"
_OPEN_COST_STORE: Final = 4 << 20
_OPEN_COST_DISK: Final = 512 << 10


def table_health(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, *, orphans_older_than: timedelta | None = None
) -> v1.TableHealth:
    """The health of a table now. The realm must be that of the server: leases of all callers count."""
    table = load(realm, warehouse, table_id)
    current = table.handle.current()
    files = None if current is None else table.handle.files(current)
    rules = CompactionRules.of(table.metadata)
    health = v1.TableHealth(table_id=table.table.resource_id, snapshots=len(table.metadata.snapshots))
    if current is not None and files is not None:
        health.snapshot_id = current.id
        _count_files(health, files, rules)
        manifests = live_manifests(table)
        health.manifests = len(manifests)
        health.manifest_bytes = sum(each.manifest_length for each in manifests)
    groups = planned_groups(table, rules)
    if files is not None:
        health.expected_gain = _expected_gain(files, groups, rules, open_cost=_open_cost(table))
    unused = unused_deletes(table.metadata, table.files)
    expired = expire_snapshots(realm, warehouse, table_id, dry_run=True)
    orphans = remove_orphans(realm, warehouse, table_id, older_than=orphans_older_than, dry_run=True)
    health.expirable_snapshots = len(expired.snapshots)
    health.expirable_bytes = expired.size_bytes
    health.orphan_files, health.orphan_bytes = len(orphans.files), orphans.size_bytes
    health.reclaimable_bytes = expired.size_bytes + orphans.size_bytes
    health.decisions.extend(
        [
            _optimize(health, groups, rules, unused=len(unused)),
            _expire(expired),
            _clean(orphans),
        ]
    )
    return health


def _count_files(health: v1.TableHealth, files: pa.Table, rules: CompactionRules) -> None:
    data = data_files(files)
    sizes: list[int] = data["size_bytes"].to_pylist()
    small = [size for size in sizes if rules.is_small(size)]
    health.target_file_bytes = rules.target_bytes
    health.data_files, health.data_bytes = len(sizes), sum(sizes)
    health.small_files, health.small_bytes = len(small), sum(small)
    health.rows = _total(data["row_count"])
    health.sizes.extend(_histogram(sizes))
    deletes = files.filter(pc.not_equal(files["content"], Content.DATA))
    health.delete_files, health.delete_bytes = deletes.num_rows, _total(deletes["size_bytes"])
    by_position = deletes.filter(pc.equal(deletes["content"], Content.POSITION_DELETES))
    health.equality_delete_files = deletes.num_rows - by_position.num_rows
    health.deleted_rows = min(_total(by_position["row_count"]), health.rows)
    health.deleted_share = health.deleted_rows / health.rows if health.rows else 0.0


def _histogram(sizes: Sequence[int]) -> Iterator[v1.FileSizes]:
    """How many files are how large."""
    lower = 0
    for upper in (*_LIMITS, 0):
        inside = [size for size in sizes if lower <= size and (size < upper or not upper)]
        yield v1.FileSizes(from_bytes=lower, to_bytes=upper, files=len(inside), bytes=sum(inside))
        lower = upper


def _open_cost(table: ManagedTable) -> int:
    """How many bytes can be read in the time that it takes to open a file."""
    given = table.metadata.properties.get(_OPEN_COST, "")
    if given.isdecimal():
        return int(given)
    return _OPEN_COST_DISK if location(table.metadata.location).scheme == "file" else _OPEN_COST_STORE


def _expected_gain(files: pa.Table, groups: Sequence[FileGroup], rules: CompactionRules, *, open_cost: int) -> float:
    """The share of the time of a full scan that `optimize` would save.

    The time is estimated by the bytes of data files and delete files, and by a cost for opening each of them. Rewritten files are
    taken to keep their size.
    """
    data = data_files(files)
    rewritten = pa.array([path for group in groups for path in group.paths], pa.string())
    kept = data.filter(pc.invert(pc.is_in(data["path"], value_set=rewritten)))
    before = _total(files["size_bytes"]) + open_cost * files.num_rows
    after = _total(kept["size_bytes"]) + open_cost * kept.num_rows
    after += sum(group.size_bytes + open_cost * _files_after(group, rules) for group in groups)
    applied = files.filter(pc.is_in(files["ordinal"], value_set=pc.list_flatten(kept["deletes"]).unique()))
    after += _total(applied["size_bytes"]) + open_cost * applied.num_rows
    return max(0.0, 1 - after / before) if before else 0.0


def _files_after(group: FileGroup, rules: CompactionRules) -> int:
    return max(1, -(-group.size_bytes // rules.target_bytes))


def _optimize(
    health: v1.TableHealth, groups: Sequence[FileGroup], rules: CompactionRules, *, unused: int
) -> v1.MaintenanceDecision:
    before = sum(group.files.num_rows for group in groups)
    size = sum(group.size_bytes for group in groups)
    after = sum(_files_after(group, rules) for group in groups)
    reasons = []
    if groups:
        reasons.append(
            f"{before} of {health.data_files} data files, {_size(size)}, would become about {after} of up to "
            f"{_size(rules.target_bytes)} ({_summary(groups)}), and a full scan would take about {health.expected_gain:.0%} less "
            "time (an estimate)"
        )
    if unused:
        reasons.append(f"{unused} delete files apply to no data file any more")
    if health.manifests >= 2 * MIN_MANIFESTS:
        reasons.append(f"{health.manifests} manifests would be merged")
    health.files_saved = max(0, before - after)
    is_due = bool(reasons)
    if not is_due:
        reasons.append(
            f"{health.small_files} of {health.data_files} data files are smaller than three quarters of "
            f"{_size(rules.target_bytes)}, and {health.deleted_share:.0%} of the rows are deleted: too few to rewrite"
        )
    return v1.MaintenanceDecision(action="optimize", is_due=is_due, reason="; ".join(reasons))


def _summary(groups: Sequence[FileGroup]) -> str:
    places = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    return f"{places}, the first with {groups[0].reason}"


def _expire(report: ExpiryReport) -> v1.MaintenanceDecision:
    kept: dict[str, int] = {}
    for reason in report.kept.values():
        kept[reason] = kept.get(reason, 0) + 1
    staying = "; ".join(f"{number} kept: {reason}" for reason, number in sorted(kept.items())) or "there are no others"
    what = (
        f"{len(report.snapshots)} snapshots expire, which frees {len(report.files)} files, {_size(report.size_bytes)}"
    )
    is_due = bool(report.snapshots or report.refs)
    return v1.MaintenanceDecision(
        action="expire", is_due=is_due, reason=f"{what if is_due else 'no snapshot expires'} ({staying})"
    )


def _clean(report: OrphanReport) -> v1.MaintenanceDecision:
    what = f"{len(report.files)} files, {_size(report.size_bytes)}, are old and no state of the table references them"
    return v1.MaintenanceDecision(
        action="clean", is_due=bool(report.files), reason=what if report.files else "there are no old orphan files"
    )


def _total(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())


def _size(number: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
