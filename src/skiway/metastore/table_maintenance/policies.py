"""Automatic maintenance: properties of catalogs, namespaces and tables say which actions run by themselves.

A table inherits the properties of its namespace, of the namespaces around it, and of its catalog; the nearest one wins. Without
properties nothing runs by itself. A sweep looks at the tables from time to time, and starts a job for each action that is on
and worth it. Large rewrites are left to people, or to Spark: an automatic optimization has a limit otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from skiway.errors import SkiwayError
from skiway.formats.iceberg.compaction import unused_deletes
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import jobs
from skiway.metastore.gc.sweeps import Slice
from skiway.metastore.managed.states import load
from skiway.metastore.platform import visit_accounts
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources.inherited_properties import MAINTENANCE, InheritedProperties, inherited
from skiway.metastore.table_maintenance.cleaning import remove_orphans
from skiway.metastore.table_maintenance.expiring import expire_snapshots
from skiway.metastore.table_maintenance.optimizing import planned_groups
from skiway.metastore.table_maintenance.tasks import (
    check_task,
    compaction_rules,
    expiry_rules,
    orphan_age_of,
    runs_on_spark,
    with_orphan_age,
)
from skiway.model import v1
from skiway.storage import Pointer, Stores

__all__ = ["ACTIONS", "TablePolicy", "policy_of", "start_due"]

ACTIONS: Final = ("optimize", "expire", "clean")
_MOST_BYTES: Final = 10 << 30
_ENGINES: Final[Mapping[str, v1.OptimizeEngine.ValueType]] = {
    "auto": v1.OE_UNSPECIFIED,
    "process": v1.OE_PROCESS,
    "spark": v1.OE_SPARK,
}

log = logging.getLogger("skiway.maintenance")


class TablePolicy(InheritedProperties):
    """The properties about maintenance that a table has or inherits."""

    def task(self, action: str) -> v1.MaintenanceTask:
        """The task of an action, with the options that the properties set."""
        match action:
            case "optimize":
                task = v1.OptimizeTask(min_files=self.number("optimize.min-files", 0), engine=self._engine())
                if "optimize.max-deleted" in self.properties:
                    task.max_deleted = self.share("optimize.max-deleted", 0)
                made = v1.MaintenanceTask(optimize=task)
            case "expire":
                made = v1.MaintenanceTask(expire=v1.ExpireTask(keep_last=self.number("expire.keep-last", 0)))
                if (age := self.duration("expire.older-than")) is not None:
                    made.expire.older_than.FromTimedelta(age)
            case _:
                made = v1.MaintenanceTask(clean=v1.CleanTask())
                if (age := self.duration("clean.older-than")) is not None:
                    made.clean.older_than.FromTimedelta(age)
        check_task(made)
        return made

    @property
    def most_bytes(self) -> int:
        """How much an automatic optimization may rewrite."""
        return self.number("optimize.max-bytes", _MOST_BYTES)

    def _engine(self) -> v1.OptimizeEngine.ValueType:
        found = self.text("optimize.engine", "auto")
        if found not in _ENGINES:
            raise self.invalid("optimize.engine", "auto, process or spark")
        return _ENGINES[found]


def policy_of(realm: Realm, table: v1.Table) -> TablePolicy:
    """The policy of a table: its own properties, and those that it inherits."""
    return TablePolicy(MAINTENANCE, inherited(realm, table, MAINTENANCE))


def start_due(
    stores: Stores,
    warehouse: Warehouse,
    *,
    realm_of: Callable[[str], Realm],
    size: int = 20,
    orphan_age: timedelta | None = None,
    spark_from_bytes: int | None = None,
    token: str | None = None,
) -> tuple[Slice, list[v1.Job]]:
    """Look at the next tables of all accounts, and start the jobs that their policies ask for.

    Optimizations that rewrite at least `spark_from_bytes` run on Spark.

    Returns how many tables were examined, where to continue, and the jobs. A table that cannot be examined is logged.
    """
    started = list[v1.Job]()

    def visit(account_id: str, pointer: Pointer) -> None:
        realm = realm_of(account_id)
        found = realm.all(TABLE).follow(pointer)
        if found is not None and found.value.metadata_location:
            started.extend(_started(realm, warehouse, found.value, orphan_age, spark_from_bytes))

    looked_at, next_token = visit_accounts(stores, keys.table, visit, size=size, token=token)
    return Slice(looked_at, next_token=next_token), started


def _started(
    realm: Realm, warehouse: Warehouse, table: v1.Table, orphan_age: timedelta | None, spark_from_bytes: int | None
) -> Iterator[v1.Job]:
    """Start the jobs of a table that are due."""
    try:
        policy = policy_of(realm, table)
        for action in filter(policy.is_auto, ACTIONS):
            task = with_orphan_age(policy.task(action), orphan_age)
            if _is_due(realm, warehouse, table, policy, task, spark_from_bytes):
                yield jobs.enqueue_maintenance(realm, table.resource_id, task)
    except SkiwayError as error:
        # One broken table must not stop the others.
        log.warning("table %s of account %s is not maintained: %s", table.display_name, realm.account_id, error)


def _is_due(
    realm: Realm,
    warehouse: Warehouse,
    table: v1.Table,
    policy: TablePolicy,
    task: v1.MaintenanceTask,
    spark_from_bytes: int | None,
) -> bool:
    """Whether a task would do anything now, and not too much for this process."""
    match task.WhichOneof("task"):
        case "optimize":
            now = load(realm, warehouse, table.resource_id)
            groups = planned_groups(now, compaction_rules(task.optimize)(now.metadata))
            size = sum(group.size_bytes for group in groups)
            if size > policy.most_bytes and not runs_on_spark(task.optimize, size, spark_from_bytes):
                log.warning(
                    "table %s is not optimized automatically, because %d bytes are to be rewritten, which is more than "
                    "maintenance.optimize.max-bytes: run skiway tables optimize",
                    table.display_name,
                    size,
                )
                return False
            return bool(groups or unused_deletes(now.metadata, now.files))
        case "expire":
            found = expire_snapshots(realm, warehouse, table.resource_id, **expiry_rules(task.expire), dry_run=True)
            return bool(found.snapshots or found.refs)
        case _:
            age = orphan_age_of(task.clean)
            return bool(remove_orphans(realm, warehouse, table.resource_id, older_than=age, dry_run=True).files)
