"""Scheduled runs: pipelines that run at intervals, or when an input has changed.

A scheduled pipeline has a pointer that holds when it is due. It is set and deleted in the batch that writes the pipeline, and moved
in the batch that enqueues the job. So exactly one of many servers enqueues it, and no crash loses a run or causes two. If the
pipeline runs when an input has changed, the pointer also holds a digest of the inputs for which the last run was enqueued. So a
table that fails is not tried again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from skiway.errors import Conflict, SkiwayError
from skiway.metastore import jobs
from skiway.metastore.jobs.schedule import Turn
from skiway.metastore.pipelines.inputs import PipelineArea
from skiway.metastore.pipelines.projects import Project, read_project
from skiway.metastore.pipelines.refreshing import PipelineRun
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import PIPELINE
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, Put, Stores

__all__ = ["CHECK_EVERY", "PipelineSchedule", "rescheduled", "unscheduled"]

CHECK_EVERY: Final = timedelta(seconds=30)
"""How often the inputs of a pipeline are compared with those of its tables, if it runs when they have changed."""

log = logging.getLogger("skiway.schedule")


def rescheduled(realm: Realm, pipeline: v1.Pipeline) -> list[Operation]:
    """The operations that the batch needs that writes a pipeline. A scheduled one is due at once."""
    project = read_project(pipeline.files)
    if _interval(project) is None:
        return unscheduled(realm, pipeline.resource_id.id)
    key, now = keys.pipeline_schedule(realm.account_id, pipeline.resource_id.id), realm.clock()
    found = realm.stores.pointers.get(key)
    return [Put(key, Turn(now, now).text, expect=found.version if found else ABSENT)]


def unscheduled(realm: Realm, pipeline_id: str) -> list[Operation]:
    """The operations that the batch needs that deletes a pipeline."""
    found = realm.stores.pointers.get(keys.pipeline_schedule(realm.account_id, pipeline_id))
    return [] if found is None else [Delete(found.key, expect=found.version)]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The scheduled pipelines of all accounts of a store."""

    stores: Stores
    realm_of: Callable[[str], Realm]
    area: PipelineArea

    def begin_due(self) -> list[v1.Job]:
        """Enqueue the runs that are due, and return their jobs. A pipeline with an unfinished job is skipped."""
        begun = [self._begin(pointer) for pointer in self.stores.pointers.scan(keys.PIPELINE_SCHEDULE)]
        return [job for job in begun if job is not None]

    def _begin(self, place: Pointer) -> v1.Job | None:
        account_id, pipeline_id = keys.pipeline_schedule_ids(place.key)
        realm = self.realm_of(account_id)
        if not _turn(place).is_due(realm.clock()):
            return None
        try:
            return self._begin_now(realm, place, pipeline_id)
        except Conflict:
            return None  # another server was faster, or the pipeline was just changed
        except SkiwayError as error:
            # One broken pipeline must not block the others.
            log.warning("pipeline %s of account %s cannot be scheduled: %s", pipeline_id, account_id, error)
            return None

    def _begin_now(self, realm: Realm, place: Pointer, pipeline_id: str) -> v1.Job | None:
        found = realm.all(PIPELINE).find(keys.pipeline(realm.account_id, pipeline_id))
        if found is None:
            self.stores.pointers.compare_and_delete(place.key, expect=place.version)
            return None
        project = read_project(found.value.files)
        state = ""
        if project.schedule is None:
            tables = self.area.tables(realm, found.value, project.catalog)
            state = PipelineRun(project, pipeline_id, tables).source_digest()
        now = realm.clock()
        following = Turn(now, now + (_interval(project) or CHECK_EVERY))
        moved = Put(place.key, f"{following.text} {state}", expect=place.version)
        if state and state == _state(place):
            self.stores.pointers.apply([moved])
            return None
        return jobs.enqueue_pipeline_unless_active(realm, found, also=[moved])


def _turn(place: Pointer) -> Turn:
    return Turn.read(replace(place, blob_uri=" ".join(place.blob_uri.split(" ")[:2])))


def _state(place: Pointer) -> str:
    """The digest of the inputs when the last run was enqueued; empty before the first."""
    return "".join(place.blob_uri.split(" ")[2:])


def _interval(project: Project) -> timedelta | None:
    """The time between two runs, or between two looks at the inputs; None for a pipeline that is started by hand."""
    return project.schedule or (CHECK_EVERY if project.on_change else None)
