"""Tables of the schema `skiway` that tell what is going on: jobs, and recent scans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.tables import MOMENT, NAMED, Asked, made, moment_of, name_of
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR, JOB
from skiway.model import v1

__all__ = ["JOBS", "PLANS", "jobs", "plans"]

JOBS: Final = pa.schema(
    [
        pa.field("job_id", pa.string()),
        pa.field("connector", pa.string()),
        pa.field("state", pa.string()),
        pa.field("message", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("tables_scanned", pa.int64()),
        pa.field("tables_changed", pa.int64()),
        pa.field("errors", pa.int64()),
        pa.field("created_at", MOMENT),
        pa.field("started_at", MOMENT),
        pa.field("finished_at", MOMENT),
    ]
)


def jobs(asked: Asked) -> pa.Table:
    """The account's jobs, newest first, for those who manage connectors."""
    realm = asked.realm
    if not asked.context.callers.may("connector.manage"):
        return JOBS.empty_table()
    names: dict[str, str | None] = {}

    def row(job: v1.Job) -> tuple[Any, ...]:
        number = job.connector_id.id
        if number not in names:
            found = realm.all(CONNECTOR).named(keys.connector(realm.account_id, number))
            names[number] = None if found is None else found.display_name
        counts = (job.attempt, job.tables_scanned, job.tables_changed, job.errors)
        moments = map(moment_of, (job.created_at, job.started_at, job.finished_at))
        return (job.job_id, names[number], name_of(v1.JobState, job.state, "JS_"), job.message, *counts, *moments)

    found = map(realm.all(JOB).follow, realm.stores.pointers.scan(keys.job_listing(realm.account_id)))
    return made(JOBS, (row(stored.value) for stored in found if stored is not None))


PLANS: Final = pa.schema(
    [
        pa.field("planned_at", MOMENT),
        pa.field("subject", pa.string()),
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("filter", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("files_considered", pa.int64()),
        pa.field("files_read", pa.int64()),
        pa.field("files_pruned", pa.int64()),
        pa.field("bytes_considered", pa.int64()),
        pa.field("bytes_read", pa.int64()),
        pa.field("endpoints", pa.int32()),
    ]
)


def plans(asked: Asked) -> pa.Table:
    """Recent scans that this server planned, of tables that the caller may see."""
    visible = {(shown.schema_name, shown.table.display_name) for shown in asked.shown}

    def rows() -> Iterator[tuple[Any, ...]]:
        for plan in asked.context.plans.of_account(asked.realm.account_id):
            if plan.catalog == asked.catalog and (plan.schema_name, plan.table_name) in visible:
                told = asdict(plan) | {"files_pruned": plan.files_considered - plan.files_read}
                yield tuple(told[name] for name in PLANS.names)

    return made(PLANS, rows())
