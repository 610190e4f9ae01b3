"""What a job does: both passes over a connector, with Spark making the statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skiway.formats import Snapshot, TableHandle
from skiway.metastore import Realm
from skiway.metastore.connector_columns import EVERY_COLUMN, ColumnChoice
from skiway.metastore.reconcile import Control, Outcome, Reconciler
from skiway.model import v1
from skiway.pipeline.session import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.pipeline.snapshots import ProfileReport

__all__ = ["SparkProfile", "jobs_of"]


@dataclass(frozen=True, slots=True)
class SparkProfile:
    """Profiles snapshots on Spark. The session is asked for when there is something to profile, and not before."""

    spark: Callable[[], SparkSession] = own_session

    def __call__(
        self,
        realm: Realm,
        table_id: v1.ResourceId,
        snapshot: Snapshot,
        *,
        handle: TableHandle,
        cancelled: Callable[[], bool],
        columns: ColumnChoice = EVERY_COLUMN,
        on_progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> ProfileReport:
        from skiway.pipeline.snapshots import profile_snapshot

        return profile_snapshot(
            realm,
            table_id,
            snapshot,
            handle=handle,
            spark=self.spark,
            columns=columns,
            on_progress=on_progress,
            cancelled=cancelled,
        )


def jobs_of(realm_of: Callable[[str], Realm], reconciler: Reconciler) -> Callable[[v1.Job, Control], Outcome]:
    """What a worker runs: a job, in the realm of the account it belongs to."""

    def run(job: v1.Job, control: Control) -> Outcome:
        return reconciler.job(realm_of(job.account_id), job, control)

    return run
