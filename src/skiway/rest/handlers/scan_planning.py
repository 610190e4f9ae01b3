"""Scan planning: the server finds the files that a scan reads, and the client reads them.

Planning is done at once, so a plan is always completed. Files come in parts: those of the first part are in the response,
and each of the others has a plan task.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import Field

from skiway.errors import InvalidArgument, NotFound
from skiway.formats.iceberg.planning.scan_tasks import METADATA_COLUMNS, appended_files, scan_tasks, scanned_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.source import Snapshot
from skiway.metastore import managed
from skiway.metastore.planning.scans import ScanPlan, add_plan, cancel_plan, check_size, find_plan
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import FrozenBody, decoded
from skiway.rest.calls import NO_CONTENT, RestRequest, RestResponse, json_response
from skiway.rest.handlers.delegation import delegated_to

PART_FILES: Final = 1000
"""How many data files a part has."""
MAX_RESIDUAL: Final = 4000
"""How many characters of a filter tasks contain as their residual."""


class PlanBody(FrozenBody):
    """A scan to plan. How many rows are wanted and which statistics is ignored: all files are returned, without statistics."""

    snapshot_id: Annotated[int | None, Field(alias="snapshot-id")] = None
    select: tuple[str, ...] | None = None
    filter: Any = None
    case_sensitive: Annotated[bool, Field(alias="case-sensitive")] = True
    snapshot_schema: Annotated[bool, Field(alias="use-snapshot-schema")] = False
    start_id: Annotated[int | None, Field(alias="start-snapshot-id")] = None
    end_id: Annotated[int | None, Field(alias="end-snapshot-id")] = None


class TaskBody(FrozenBody):
    """A part to fetch."""

    task: Annotated[str, Field(alias="plan-task")]


def plan(request: RestRequest) -> RestResponse:
    """Plan a scan of a snapshot, or of what was appended between two snapshots."""
    table, handle = _opened(request)
    wanted = decoded(request.body, PlanBody)
    if (wanted.start_id is None) != (wanted.end_id is None) or (
        wanted.snapshot_id is not None and wanted.start_id is not None
    ):
        raise InvalidArgument(
            "send snapshot-id, or both start-snapshot-id and end-snapshot-id, or none of them",
            key="field.invalid",
            field="snapshot-id",
        )
    named, current = wanted.snapshot_id if wanted.end_id is None else wanted.end_id, handle.current()
    snapshot_id = named if named is not None else current.id if current is not None else None
    made = ScanPlan(
        snapshot_id=snapshot_id,
        start_id=wanted.start_id,
        filter="" if wanted.filter is None else json.dumps(wanted.filter),
        case_sensitive=wanted.case_sensitive,
        snapshot_schema=wanted.snapshot_schema,
    )
    check_size(made)
    snapshot, files = _planned(handle, made)
    _check_columns(_schema(handle, made, snapshot), wanted.select, case_sensitive=made.case_sensitive)
    plan_id = add_plan(request.realm, table.resource_id.id, made)
    completed = {**_completed(handle, plan_id, made, snapshot, files), "plan-id": plan_id}
    answer = json_response(completed | _access(request, table))
    return RestResponse(answer.status, answer.body, stored=json_response(completed).body)


def result(request: RestRequest) -> RestResponse:
    """Return the result of a plan again."""
    table, handle = _opened(request)
    plan_id = request.names["plan-id"]
    made = find_plan(request.realm, table.resource_id.id, plan_id)
    completed = _completed(handle, plan_id, made, *_planned(handle, made))
    return json_response(completed | _access(request, table))


def cancel(request: RestRequest) -> RestResponse:
    """Forget a plan: its remaining parts can no longer be fetched."""
    table, _ = _opened(request)
    cancel_plan(request.realm, table.resource_id.id, request.names["plan-id"])
    return NO_CONTENT


def tasks(request: RestRequest) -> RestResponse:
    """Return the files of one part."""
    table, handle = _opened(request)
    plan_id, _, number = decoded(request.body, TaskBody).task.rpartition(".")
    try:
        made = find_plan(request.realm, table.resource_id.id, plan_id)
    except NotFound as error:
        raise NotFound(error.message, key="plan_task.missing") from error
    snapshot, files = _planned(handle, made)
    start = int(number) * PART_FILES if re.fullmatch(r"[0-9]{1,9}", number) else 0
    if snapshot is None or not 0 < start < files.num_rows:
        raise NotFound(f"the plan has no part {number[:20]!r}: plan the scan again", key="plan_task.missing")
    return json_response(_part(handle, made, snapshot, files.slice(start, PART_FILES)))


def _opened(request: RestRequest) -> tuple[v1.Table, IcebergTable]:
    """The table in the path, opened. Plans name files, so they are refused to restricted callers."""
    found = resolve.readable(request).served_table()
    request.realm.require_unrestricted(found)
    if not found.metadata_location:
        return found, resolve.opened(request.realm, request.lake, found)
    return found, managed.open_current(request.realm, request.lake.warehouse, found)


def _planned(handle: IcebergTable, made: ScanPlan) -> tuple[Snapshot | None, pa.Table]:
    """The snapshot that is read, and its files with rows that may match; none of an empty table."""
    if made.snapshot_id is None:
        return None, pa.table({})
    snapshot = next((each for each in handle.snapshots() if each.id == made.snapshot_id), None)
    if snapshot is None:
        raise InvalidArgument(
            f"the table has no snapshot {made.snapshot_id}; it may have expired: load the table and use one of its snapshots",
            key="snapshot.unknown",
            field="snapshot-id",
        )
    schema = (handle.schema_at(snapshot) if made.snapshot_schema else handle.schema).arrow
    condition = _filter(handle, made, snapshot)
    if made.start_id is not None:
        return snapshot, appended_files(handle, made.start_id, snapshot.id, condition, schema)
    return snapshot, scanned_files(handle, snapshot, condition, schema)


def _filter(handle: IcebergTable, made: ScanPlan, snapshot: Snapshot) -> Any:
    """The filter of the plan, for the planner; None if there is none."""
    from skiway.formats.iceberg.planning.expressions import filter_in

    if not made.filter:
        return None
    return filter_in(json.loads(made.filter), _schema(handle, made, snapshot), case_sensitive=made.case_sensitive)


def _schema(handle: IcebergTable, made: ScanPlan, snapshot: Snapshot | None) -> Any:
    """The schema that names of columns refer to, as PyIceberg has it."""
    number = (
        handle.schema_at(snapshot).id
        if made.snapshot_schema and snapshot is not None
        else handle.metadata.current_schema_id
    )
    return next(schema for schema in handle.metadata.schemas if schema.schema_id == number)


def _check_columns(schema: Any, names: tuple[str, ...] | None, *, case_sensitive: bool) -> None:
    for name in dict.fromkeys(names or ()):
        if name.partition(".")[0].lower() in METADATA_COLUMNS:
            continue
        try:
            schema.find_field(name, case_sensitive=case_sensitive)
        except ValueError:
            raise InvalidArgument(
                f"select names column {name[:100]!r}, which the table does not have",
                key="field.invalid",
                field="select",
            ) from None


def _access(request: RestRequest, table: v1.Table) -> dict[str, Any]:
    """Credentials for the files, if the client asks for them."""
    found = delegated_to(request, table).credentials
    return {"storage-credentials": found} if found else {}


def _completed(
    handle: IcebergTable, plan_id: str, made: ScanPlan, snapshot: Snapshot | None, files: pa.Table
) -> dict[str, Any]:
    if snapshot is None:
        return {"status": "completed", "file-scan-tasks": []}
    others = [f"{plan_id}.{number}" for number in range(1, -(-files.num_rows // PART_FILES))]
    more = {"plan-tasks": others} if others else {}
    return {"status": "completed", **_part(handle, made, snapshot, files.slice(0, PART_FILES)), **more}


def _part(handle: IcebergTable, made: ScanPlan, snapshot: Snapshot, files: pa.Table) -> dict[str, Any]:
    # Each task would repeat it. Without it, the client uses the filter that it has sent.
    residual = json.loads(made.filter) if 0 < len(made.filter) <= MAX_RESIDUAL else None
    return scan_tasks(handle, files, residual=residual, deletes_of=snapshot if made.start_id is None else None)
