"""The functions `refresh` and `profile`, which start background jobs for one table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from skiway.airport import Parameter
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.lake.system.effects import ChangeTable, Place
from skiway.lake.system.scanning import enum_name
from skiway.metastore import jobs
from skiway.metastore.jobs.queue import FINISHED
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

__all__ = ["ProfileFunction", "RefreshFunction"]


_POLL_S: Final = 0.1
_MAX_WAIT_S: Final = 3600


class _JobFunction(ChangeTable):
    """A function that starts a job for a table, or joins an equal one, and waits for it as long as the caller wants."""

    permission = "table.read"
    result = pa.schema(
        {
            "table": pa.string(),
            "job_id": pa.string(),
            "state": pa.string(),
            "message": pa.string(),
            "tables_changed": pa.int64(),
        }
    )
    default_wait_s: float

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Start the job and wait for it."""
        wait_s = self.default_wait_s if given["wait_s"] is None else given["wait_s"]
        if not 0 <= wait_s <= _MAX_WAIT_S:
            raise InvalidArgument(f"wait_s is {wait_s:g}: use 0 to {_MAX_WAIT_S} seconds", key="job.wait")
        table = self.found(place)
        realm = self._context.callers.realm()
        realm.require_everywhere("connector.manage", what=f"a job for table {self.full_name(place)}")
        job = self.started(place, table, given)
        deadline = time.monotonic() + wait_s
        while job.state not in FINISHED and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            job = jobs.get(realm, v1.GetReconcileJobRequest(job_id=job.job_id)).job
        return {
            "table": self.full_name(place),
            "job_id": job.job_id,
            "state": enum_name(v1.JobState, job.state, "JS_"),
            "message": job.message or None,
            "tables_changed": job.tables_changed,
        }

    def started(self, place: Place, table: v1.Table, given: Mapping[str, Any]) -> v1.Job:
        """Start the job."""
        raise NotImplementedError

    def _mirrored(self, place: Place, table: v1.Table, mode: v1.CaptureMode.ValueType, *, full: bool) -> v1.Job:
        path = v1.NamespacePath(segments=full_path(place.namespace))
        scope = v1.JobScope(namespaces=[path], table=table.display_name)
        realm = self._context.callers.realm()
        return jobs.enqueue(realm, table.upstream.connector_id, scope=scope, modes=(mode,), full_rescan=full)


class RefreshFunction(_JobFunction):
    """`refresh(table)`: reads the current state of a mirrored table from its source."""

    name = "refresh"
    comment = (
        "Reads the current state of a mirrored table from its source, and waits for it: refresh('s.t', wait_s => 60)."
    )
    parameters = (Parameter("name", pa.string()), Parameter("wait_s", pa.float64(), named=True))
    default_wait_s = 60.0

    def started(self, place: Place, table: v1.Table, given: Mapping[str, Any]) -> v1.Job:  # noqa: ARG002
        """Start a job that mirrors this table only."""
        if table.metadata_location:
            raise PreconditionFailed(
                f"table {self.full_name(place)} is managed here and always current: there is nothing to refresh",
                key="table.managed",
                table=self.full_name(place),
            )
        return self._mirrored(place, table, v1.CAP_METADATA_ONLY_CORE, full=False)


class ProfileFunction(_JobFunction):
    """`profile(table)`: computes statistics of a table with Spark."""

    name = "profile"
    comment = (
        "Computes statistics of a table with Spark, in the background: profile('s.t', full => true, wait_s => 600)."
    )
    parameters = (
        Parameter("name", pa.string()),
        Parameter("full", pa.bool_(), named=True),
        Parameter("wait_s", pa.float64(), named=True),
    )
    default_wait_s = 0.0

    def started(self, place: Place, table: v1.Table, given: Mapping[str, Any]) -> v1.Job:
        """Start a job that profiles this table only."""
        full = bool(given["full"])
        if table.metadata_location:
            return jobs.enqueue_profile(self._context.callers.realm(), table.resource_id, full_rescan=full)
        return self._mirrored(place, table, v1.CAP_STATS_ONLY_ASYNC, full=full)
