"""Tables: columns with their profiles, rows, snapshots, files, health and maintenance, access, and snippets to copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from skiway.client import Predicate, col
from skiway.client.metastore import Table, dotted
from skiway.client.metastore.jobs import MaintenancePlan, clean_task, expire_task, optimize_task
from skiway.client.metastore.resources import value_of
from skiway.errors import InvalidArgument, NotFound
from skiway.model import v1
from skiway.presentation.tables import (
    ColumnProfile,
    TableRecord,
    column_comments,
    column_profiles,
    health_data,
    nested_fields,
    nested_types,
    numeric_position,
    picked,
    profile_facts,
    row_count,
    top_level,
    top_values_data,
)
from skiway.web.pages.objects.lineage import lineage
from skiway.web.pages.objects.rows import preview
from skiway.web.pages.objects.sharing import access, connect
from skiway.web.pages.objects.snapshots import timeline
from skiway.web.pages.overview import rule_data
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, TablePath, Visit, optional

MAX_PLANNED: Final = 500
TASKS: Final[Mapping[str, Callable[[], v1.MaintenanceTask]]] = {
    "optimize": optimize_task,
    "expire": expire_task,
    "clean": clean_task,
}


def maintain(visit: Visit) -> Redirect:
    """Start the job of an action, with the rules of the table."""
    visit.table_path()  # raises for other addresses
    job = visit.lake.maintenance.start(visit.names, _task(visit.form.get("action", "")))
    return Redirect(f"{path_to('tables', *visit.names)}?tab=health&job={job.id}")


def _task(action: str) -> v1.MaintenanceTask:
    if action not in TASKS:
        raise InvalidArgument(f"{action[:40]!r} is not an action: use {', '.join(TASKS)}", key="form.invalid")
    return TASKS[action]()


def _job(visit: Visit, table: Table) -> dict[str, Any]:
    """A job of the table. Callers who may read the table may see it, unlike other jobs."""
    job = visit.lake.maintenance.get(table, visit.query["job"])
    return {**picked(job, "id", "state", "is_over", "action=phase"), "message": job.message.message}


def _plan(visit: Visit, table: Table, action: str) -> dict[str, Any]:
    found: MaintenancePlan = visit.lake.maintenance.plan(table, _task(action))
    return {
        "action": action,
        "refs": found.refs,
        "snapshots": [picked(each, "id=snapshot_id", "expires", "reason") for each in found.snapshots[:MAX_PLANNED]],
        "files": [
            {**picked(file, "path=location", "size_bytes", "reason"), "group": file.group or None}
            for file in found.files[:MAX_PLANNED]
        ],
        "file_count": len(found.files),
        "size_bytes": sum(each.size_bytes for each in found.files),
        "snapshot_count": sum(each.expires for each in found.snapshots),
    }


MAX_FILES: Final = 500
MAX_PLANS: Final = 50
MAX_PROFILES: Final = 50


def table(visit: Visit) -> Page:
    """A table. The parameter `tab` chooses the tab, and `at` a snapshot; without it, the page shows the current one."""
    visit.table_path()  # raises for other addresses
    tab, tabs = visit.query.get("tab", "columns"), ON_BRANCH if visit.branch else tuple(TABS)
    if tab not in tabs:
        raise NotFound(f"tables have no tab {tab[:40]!r}: choose {', '.join(tabs)}", key="page.unknown")
    name, read = TABS[tab]
    found = visit.there.tables.get(visit.names, at=visit.at)
    record = TableRecord.of(found, _connectors(visit, found), name=dotted((*visit.names[:-1], found.name)))
    stats, damage = (None, "") if visit.at is None else optional(lambda: visit.there.statistics.find(found, visit.at))
    data = {
        "path": list(visit.names),
        **picked(record, "name", "format", "origin", "location", "properties", "created_at", "updated_at", "problem"),
        "comment": record.description or "",
        "owner": record.properties.get("owner", ""),
        "rows": row_count(stats.row_count, is_bound=stats.row_count_is_bound) if stats else record.rows,
        "rows_are_bound": stats.row_count_is_bound if stats else record.rows_are_bound,
        "data_files": stats.data_file_count if stats else record.data_files,
        "size_bytes": stats.total_size_bytes if stats else record.size_bytes,
        "snapshot_id": stats.snapshot_id if stats else record.snapshot_id,
        "at": visit.at,
        "damage": record.damage or damage,
        "column_names": [column.name for column in record.columns],
        "branch": visit.branch,
        "tab": tab,
        "tabs": list(tabs),
        name: read(visit, found, record),
    }
    return Page("table.html", record.name, data)


def _connectors(visit: Visit, found: Table) -> Mapping[str, str]:
    """The names of connectors by id; none for a table without one, and for visitors who may not see them."""
    if found.upstream is None or not found.upstream.connector_id.id:
        return {}
    names, _ = optional(lambda: {str(each.id): each.name for each in visit.lake.connectors()})
    return names or {}


def _columns(visit: Visit, found: Table, record: TableRecord) -> dict[str, Any]:
    profiles, reason = optional(lambda: {each.name: each for each in column_profiles(visit.there, record, visit.at)})
    before, _ = optional(lambda: _profiles_before(visit, found, record)) if profiles else ({}, "")
    tags, _ = optional(lambda: visit.lake.policies.tags(found))
    comments, nested = column_comments(found), nested_types(found.schema_json)

    def shown(name: str, type_text: str, *, required: bool = False, is_nested: bool = False) -> dict[str, Any]:
        return {
            "name": name,
            "type": type_text,
            "required": required,
            "nested": is_nested,
            "comment": "" if is_nested else comments.get(name, ""),
            "tags": [] if is_nested else list((tags or {}).get(name, ())),
            "profile": profile_facts((profiles or {}).get(name), (before or {}).get(name)),
        }

    columns = [
        each
        for column in record.columns
        for each in (
            shown(column.name, column.type, required=column.required),
            *(
                shown(field.name, nested.get(field.name, field.type), is_nested=True)
                for field in nested_fields(record, profiles or {}, column.name)
            ),
        )
    ]
    sample, _ = optional(lambda: found.stats.properties.get("files.sample"))
    wanted = next((each for each in columns if each["name"] == visit.query.get("column")), None)
    return {
        "columns": columns,
        "reason": reason,
        "sample_files": int(sample) if sample else None,
        "scale": "log" if visit.query.get("scale") == "log" else "",
        "detail": wanted and {**wanted, **_detail(visit, found, (profiles or {}).get(wanted["name"]))},
    }


QUANTILES: Final = {"0.25": "25 %", "0.5": "median", "0.75": "75 %"}


def _detail(visit: Visit, found: Table, profile: ColumnProfile | None) -> dict[str, Any]:
    """What the page shows of one column besides its profile: quantiles, and how it changed over snapshots."""
    if profile is None:
        return {"quantiles": {}, "marks": {}, "history": []}
    quantiles = {QUANTILES[share]: value for share, value in profile.quantiles.items() if share in QUANTILES}
    places = {share: numeric_position(value) for share, value in quantiles.items()}
    known, _ = optional(lambda: list(islice(visit.there.statistics.history(found), MAX_PROFILES)))
    history = [
        _in_snapshot(snapshot, ColumnProfile.of(each, profile.type))
        for snapshot in reversed(known or ())
        for each in snapshot.columns
        if each.column_name == profile.name
    ]
    marks = {share: place for share, place in places.items() if place is not None and share == "median"}
    return {"quantiles": quantiles, "marks": marks, "history": history}


def _profiles_before(visit: Visit, found: Table, record: TableRecord) -> dict[str, ColumnProfile]:
    """The profiles in the previous snapshot, to show what changed."""
    parent = visit.there.snapshots.get(found, visit.at).parent_id
    return {} if parent is None else {each.name: each for each in column_profiles(visit.there, record, parent)}


def _files(visit: Visit, found: Table, record: TableRecord) -> dict[str, Any]:  # noqa: ARG001
    files = islice(visit.there.statistics.files(found, visit.at, page_size=MAX_FILES), MAX_FILES)
    names = ("path=file_path", "format=file_format", "rows=row_count", "size_bytes", "partition=partition_data_json")
    return {"files": [picked(file, *names) for file in files], "limit": MAX_FILES}


def _is(path: TablePath) -> Predicate:
    return (col("schema_name") == path.schema) & (col("table_name") == path.name)


def _plans(visit: Visit, found: Table, record: TableRecord) -> dict[str, Any]:  # noqa: ARG001
    path = visit.table_path()
    scans = visit.airport(path.catalog).scan(("skiway", "plans"), where=_is(path)).read_all().to_pylist()
    hidden = ("schema_name", "table_name")
    shown = [{key: value for key, value in each.items() if key not in hidden} for each in scans]
    return {"plans": sorted(shown, key=lambda each: each["planned_at"], reverse=True)[:MAX_PLANS]}


def _quality(visit: Visit, found: Table, record: TableRecord) -> dict[str, Any]:  # noqa: ARG001
    return {"rules": [rule_data(each) for each in visit.lake.rules(found)]}


def _health(visit: Visit, table: Table, record: TableRecord) -> dict[str, Any]:
    """The health of a table now. The parameter `plan` asks for a dry run of an action, and `job` for the state of a job."""
    if record.origin != "managed":
        reason = "This table is a mirror: it is maintained in its source."
        return {"figures": None, "sizes": [], "decisions": [], "plan": None, "job": None, "reason": reason}
    health, reason = optional(lambda: visit.lake.maintenance.health(table))
    action = visit.query.get("plan", "")
    plan, no_plan = optional(lambda: _plan(visit, table, action)) if action else (None, "")
    job, no_job = optional(lambda: _job(visit, table)) if "job" in visit.query else (None, "")
    return {
        **({"figures": None, "sizes": [], "decisions": []} if health is None else health_data(health)),
        "plan": plan,
        "job": job,
        "reason": reason or no_plan or no_job,
    }


def _statistics(visit: Visit, found: Table, record: TableRecord) -> dict[str, Any]:
    """How the statistics of each column changed from profile to profile."""
    known, reason = optional(lambda: list(islice(visit.there.statistics.history(found), MAX_PROFILES)))
    columns: dict[str, list[dict[str, Any]]] = {}
    for snapshot in reversed(known or ()):
        for each in snapshot.columns:
            profile = ColumnProfile.of(each, each.logical_type)
            columns.setdefault(each.column_name, []).append(_in_snapshot(snapshot, profile))
    order = [each.name for each in record.columns]
    names = sorted(
        columns, key=lambda name: order.index(top) if (top := top_level(name, order)) in order else len(order)
    )
    return {"columns": [{"name": name, "profiles": columns[name]} for name in names], "reason": reason}


def _in_snapshot(snapshot: v1.ProfiledSnapshot, profile: ColumnProfile) -> dict[str, Any]:
    median = profile.quantiles.get("0.5")
    return {
        **picked(snapshot, "snapshot_id", "rows_are_bound=row_count_is_bound"),
        "at": value_of(snapshot, "created_at"),
        "profiled_at": value_of(snapshot, "profiled_at"),
        "rows": row_count(snapshot.row_count, is_bound=snapshot.row_count_is_bound),
        "distinct": profile.distinct.value if profile.distinct else None,
        "median": median,
        "median_position": None if median is None else numeric_position(median),
        **picked(profile, "null_share", "min", "max", "quantiles", "values"),
        "top_values": top_values_data(profile),
    }


TABS: Final[Mapping[str, tuple[str, Callable[[Visit, Table, TableRecord], dict[str, Any]]]]] = {
    "columns": ("columns", _columns),
    "rows": ("preview", lambda visit, _, record: preview(visit, {each.name for each in record.columns})),
    "snapshots": ("history", timeline),
    "lineage": (
        "lineage",
        lambda visit, _, record: lineage(visit, "" if record.origin in ("managed", "-") else record.origin),
    ),
    "access": ("access", lambda visit, found, _: access(visit, found)),
    "quality": ("quality", _quality),
    "statistics": ("statistics", _statistics),
    "files": ("layout", _files),
    "plans": ("scans", _plans),
    "health": ("health", _health),
    "connect": ("connect", lambda visit, *_: connect(visit)),
}
"""The tabs: the name of what each shows in the data of the page, and what returns it."""

ON_BRANCH: Final = ("columns", "rows", "snapshots", "lineage", "files", "connect")
"""The tabs on a branch of the lake. The others tell about main: rights, for example, are always those of main."""
