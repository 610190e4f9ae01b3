"""Planned scans that are fetched in parts: scan bundles of engines, and the stored plans of Iceberg clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Conflict, InvalidArgument, LimitExceeded, NotFound, SkiwayError, Unsupported
from skiway.foundation.clock import to_micros
from skiway.metastore import queries
from skiway.metastore.planning.planner import Numbers, Plan, Planner
from skiway.metastore.queries import leases
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.api import renamed
from skiway.metastore.statistics.file_table import DELETED_ROWS
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Pointer, Put

UNPARTITIONED = ("", "{}")
MESSAGE_FILES: Final = 1_000
MESSAGE_BYTES: Final = 1_000_000
MAX_PREDICATES: Final = 1_000
MAX_VALUES: Final = 10_000
MAX_TEXT: Final = 100_000


class Deletes:
    """The delete files of a plan, numbered in the order of the messages."""

    def __init__(self, files: pa.Table, deletes: Numbers) -> None:
        self._sequence = np.asarray(pc.fill_null(files["sequence_number"], -1))
        self._partition = _codes(files)
        self._deletes = deletes
        contents = np.asarray(files["file_content"])[deletes]
        by_equality = contents == v1.FC_EQUALITY_DELETES
        plain = np.asarray(pc.is_in(files["partition_data_json"], value_set=pa.array(UNPARTITIONED, pa.string())))[
            deletes
        ]
        unknown = np.asarray(pc.equal(pc.fill_null(files["partition_data_json"], ""), ""))
        self._unplaced = unknown
        self._everywhere = (by_equality & plain) | unknown[deletes]
        # Position deletes also apply to data of the same commit.
        self._before = np.where(by_equality, 0, 1)

    def applying(self, data: Numbers) -> list[list[int]]:
        """For each of these data files, the numbers of its delete files."""
        if not len(self._deletes):
            return [[] for _ in data]
        own, others = self._sequence[data][:, None], self._sequence[self._deletes][None, :]
        unordered = (own < 0) | (others < 0)
        later = own < others + self._before[None, :]
        same = self._partition[data][:, None] == self._partition[self._deletes][None, :]
        anywhere = self._everywhere[None, :] | self._unplaced[data][:, None]
        applies = (unordered | later) & (same | anywhere)
        return [np.flatnonzero(row).tolist() for row in applies]


def _codes(files: pa.Table) -> Numbers:
    """A number per file that is equal for files of the same partition."""
    names = pc.binary_join_element_wise(
        files["partition_spec_id"].cast(pa.string()), pc.fill_null(files["partition_data_json"], ""), " "
    )
    whole = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    return np.asarray(whole.dictionary_encode().indices, dtype=np.int64)


def fetch(
    realm: Realm,
    request: v1.FetchScanBundleRequest,
    *,
    planner: Planner,
    rules: QueryRules = queries.RULES,
) -> Iterator[v1.FetchScanBundleResponse]:
    """The files of a table that a query may have to read. The outcome of planning is stored in the query."""
    if not request.table_id.id.strip():
        raise InvalidArgument(
            "table_id is missing: set the table to read", key="query.table.id.required", field="table_id"
        )
    _check_predicates(request)
    pinned = queries.pinned(realm, request.query_id, request.table_id, rules=rules)
    realm.require_unrestricted(pinned.table())
    try:
        _refuse_hidden_deletes(pinned)
        plan = planner.plan(pinned, request.predicates, tasks=request.tasks)
        yield v1.FetchScanBundleResponse(table_info=_info(pinned), report=_report(plan))
        yield from _files(pinned, plan, request)
    except SkiwayError:
        _store_status(realm, request.query_id, v1.QS_FAILED, rules)
        raise
    _store_status(realm, request.query_id, v1.QS_COMPLETED, rules)


def _check_predicates(request: v1.FetchScanBundleRequest) -> None:
    values = sum(len(predicate.values) for predicate in request.predicates)
    longest = max((len(text) for predicate in request.predicates for text in predicate.values), default=0)
    if len(request.predicates) > MAX_PREDICATES or values > MAX_VALUES or longest > MAX_TEXT:
        raise LimitExceeded(
            f"the filter has {len(request.predicates)} predicates with {values} values, the longest of {longest} characters: send up "
            f"to {MAX_PREDICATES} predicates, {MAX_VALUES} values and {MAX_TEXT} characters, and filter the rows in the client",
            key="scanbundle.filter.too_large",
            field="predicates",
        )


def _refuse_hidden_deletes(pinned: PinnedSnapshot) -> None:
    gone = pinned.snapshot().format_metadata.get(DELETED_ROWS, b"").decode()
    if gone:
        raise Unsupported(
            f"{gone} rows of table {pinned.table().display_name} are deleted by deletion vectors in its log, which a scan"
            " bundle cannot contain: read the table through Airport",
            key="scanbundle.deletes.unsupported",
            table_id=pinned.of.table_id.id,
        )


def _info(pinned: PinnedSnapshot) -> v1.TableInfo:
    table, snapshot = pinned.table(), pinned.snapshot()
    return v1.TableInfo(
        table_id=table.resource_id,
        schema_json=pinned.schema_json(),
        partition_spec=snapshot.partition_spec,
        properties=table.properties,
        metadata_location=snapshot.metadata_location or table.metadata_location,
        snapshot_id=snapshot.snapshot_id,
    )


def _report(plan: Plan) -> v1.ScanReport:
    return v1.ScanReport(
        files_total=int(plan.facts.is_data.sum()),
        files_kept=len(plan.data),
        bytes_kept=plan.bytes,
        delete_files_kept=len(plan.deletes),
        tasks=int(plan.tasks.max()) + 1 if len(plan.tasks) else 0,
        predicates=[
            v1.PredicateReport(predicate=each.predicate, files_removed=each.removed, unused_because=each.unused_because)
            for each in plan.pruned
        ],
    )


def _files(
    pinned: PinnedSnapshot, plan: Plan, request: v1.FetchScanBundleRequest
) -> Iterator[v1.FetchScanBundleResponse]:
    messages = _FileMessages(pinned, request)
    for some in _in_bounds(messages.files(plan.facts.files, plan.deletes)):
        yield v1.FetchScanBundleResponse(delete_files=some)
    for some in _in_bounds(_data(plan, messages)):
        yield v1.FetchScanBundleResponse(data_files=some)


def _data(plan: Plan, messages: _FileMessages) -> Iterator[v1.ScanFile]:
    """The data files with their tasks and delete files, in chunks, so that memory does not grow with their number."""
    deletes = Deletes(plan.facts.files, plan.deletes)
    for first in range(0, len(plan.data), MESSAGE_FILES):
        places = plan.data[first : first + MESSAGE_FILES]
        tasks = plan.tasks[first : first + MESSAGE_FILES].tolist()
        applying = deletes.applying(places)
        for file, task, indices in zip(messages.files(plan.facts.files, places), tasks, applying, strict=True):
            file.task = task
            file.delete_file_indices.extend(indices)
            yield file


class _FileMessages:
    """Makes the messages of files, with the statistics of the requested columns."""

    def __init__(self, pinned: PinnedSnapshot, request: v1.FetchScanBundleRequest) -> None:
        self._pinned = pinned
        self._names = pinned.column_names()
        self._without = request.exclude_column_stats
        self._wanted = {name.casefold() for name in request.required_columns}

    def files(self, files: pa.Table, places: Numbers) -> Iterator[v1.ScanFile]:
        table_id, snapshot_id = self._pinned.of.table_id, self._pinned.of.snapshot_id
        for first in range(0, len(places), MESSAGE_FILES):
            some = files.take(pa.array(places[first : first + MESSAGE_FILES]))
            if self._without:
                none = pa.array([[]] * some.num_rows, files.schema.field("columns").type)
                some = some.set_column(some.schema.get_field_index("columns"), "columns", none)
            for stats in file_table.files_after(
                some, "", limit=some.num_rows, table_id=table_id, snapshot_id=snapshot_id
            ):
                yield self._file(stats)

    def _file(self, stats: v1.FileColumnStats) -> v1.ScanFile:
        named = ((column, self._names.get(column.column_id, column.column_name)) for column in stats.columns)
        columns = [
            renamed(each, {each.column_id: name})
            for each, name in named
            if name is not None and (not self._wanted or name.casefold() in self._wanted)
        ]
        return v1.ScanFile(
            file_path=stats.file_path,
            file_format=stats.file_format,
            file_size_in_bytes=stats.size_bytes,
            record_count=stats.row_count,
            file_content=stats.file_content,
            columns=columns,
            partition_data_json=stats.partition_data_json,
            partition_spec_id=stats.partition_spec_id,
            equality_field_ids=stats.equality_field_ids,
            sequence_number=stats.sequence_number if stats.HasField("sequence_number") else None,
        )


def _in_bounds(files: Iterator[v1.ScanFile]) -> Iterator[list[v1.ScanFile]]:
    """Group files into messages of bounded size. A file that is larger gets its own message."""
    group: list[v1.ScanFile] = []
    size = 0
    for file in files:
        own = file.ByteSize()
        if group and (size + own > MESSAGE_BYTES or len(group) >= MESSAGE_FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += own
    if group:
        yield group


def _store_status(realm: Realm, query_id: str, status: v1.QueryStatus.ValueType, rules: QueryRules) -> None:
    def edit(lease: v1.QueryLease) -> None:
        lease.descriptor.query_status = status

    leases.amended(realm, query_id.strip(), rules, edit=edit)


MAX_PLANS: Final = 100
MAX_FILTER: Final = 100_000
PLANS_KEPT: Final = timedelta(hours=1)


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked for. `filter` is JSON, or empty. Without a snapshot, the table was empty."""

    snapshot_id: int | None = None
    start_id: int | None = None
    filter: str = ""
    case_sensitive: bool = True
    snapshot_schema: bool = False


def check_size(plan: ScanPlan) -> None:
    """Raise `LimitExceeded` if the plan cannot be stored. Call this before the plan is made."""
    if len(plan.filter) > MAX_FILTER:
        raise LimitExceeded(
            f"the filter of the scan has {len(plan.filter)} characters, the maximum is {MAX_FILTER}: send a shorter one, and filter "
            "the rows in the client",
            key="plan.too_large",
        )


def add_plan(realm: Realm, table_id: str, plan: ScanPlan) -> str:
    """Store a plan and return its id."""
    text, now = msgspec.json.encode(plan).decode(), realm.clock()
    plan_id = f"{to_micros(now):020d}-{realm.ids()}"
    key = keys.scan_plan(realm.account_id, table_id, realm.caller, plan_id)
    realm.stores.pointers.apply([Put(key, text, expect=ABSENT, expires_at=now + PLANS_KEPT)])
    prefix = keys.scan_plan(realm.account_id, table_id, realm.caller)
    for pointer in realm.stores.pointers.page(prefix, size=2 * MAX_PLANS).items[:-MAX_PLANS]:
        with suppress(Conflict, NotFound):  # another server was first
            realm.stores.pointers.apply([Delete(pointer.key, expect=pointer.version)])
    return plan_id


def find_plan(realm: Realm, table_id: str, plan_id: str) -> ScanPlan:
    """The caller's plan with this id; raises `NotFound`."""
    return msgspec.json.decode(_stored_plan(realm, table_id, plan_id).blob_uri, type=ScanPlan)


def cancel_plan(realm: Realm, table_id: str, plan_id: str) -> None:
    """Forget the caller's plan with this id; raises `NotFound`."""
    pointer = _stored_plan(realm, table_id, plan_id)
    with suppress(Conflict, NotFound):
        realm.stores.pointers.apply([Delete(pointer.key, expect=pointer.version)])


def _stored_plan(realm: Realm, table_id: str, plan_id: str) -> Pointer:
    key = keys.scan_plan(realm.account_id, table_id, realm.caller, plan_id)
    pointer = realm.stores.pointers.get(key) if plan_id else None
    if pointer is None:
        raise NotFound(
            f"plan {plan_id[:100]!r} does not exist: it was cancelled, has expired, or belongs to another caller or table; plan "
            "the scan again",
            key="plan.missing",
        )
    return pointer
