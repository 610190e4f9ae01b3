"""Pipelines: tables that are derived from other tables by queries in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from skiway.client.metastore.collection import Area, Listing, listing_of
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.names import Id
from skiway.client.metastore.resources import Meta
from skiway.model import v1

__all__ = ["Pipeline", "Pipelines", "PlannedTable"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline. `files` are texts by path; `owner` is the caller whose rights its runs have."""

    id: Id
    name: str
    owner: str
    files: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    version: int | None = None
    damage: str = ""

    @classmethod
    def of(cls, pipeline: v1.Pipeline, meta: v1.MutationMeta | None = None) -> Pipeline:
        """Convert the message."""
        return cls(
            Id(pipeline.resource_id.id),
            pipeline.display_name,
            pipeline.owner.subject,
            dict(sorted(pipeline.files.items())),
            pipeline.created_at.ToDatetime(UTC),
            pipeline.updated_at.ToDatetime(UTC),
            meta.pointer_version if meta else None,
            pipeline.damage,
        )


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """What a run would do to a table: `keep`, `append`, `replace` or `fail`; and why.

    `last_action` and `refreshed_at` tell about the last refresh, and `columns` from which columns each column was computed, as
    far as the query shows it: names such as `shop.orders.price`, by the names of the table's columns.
    """

    table: str
    action: str
    reason: str
    reads: list[str]
    last_action: str | None = None
    refreshed_at: datetime | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: v1.PlannedTable) -> PlannedTable:
        """Convert the message."""
        columns: dict[str, list[str]] = {}
        for each in planned.columns:
            columns.setdefault(each.column, []).append(f"{each.source_table}.{each.source_column}")
        at = planned.refreshed_at.ToDatetime(UTC) if planned.HasField("refreshed_at") else None
        return cls(
            planned.table,
            planned.action,
            planned.reason,
            list(planned.reads),
            planned.last_action or None,
            at,
            columns,
        )


class Pipelines(Area):
    """`lake.pipelines`, by name, which is unique in the account."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Pipeline]:
        """List all pipelines by name."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Pipeline]]:
            return {}, Pipeline.of

        return listing_of(self._calls, "ListPipelines", "pipelines", start, page_size)

    def get(self, name: str) -> Pipeline:
        """Return the pipeline with a name or an `Id`."""
        key = {"pipeline_id": self._id(name)} if isinstance(name, Id) else {"display_name": name}
        response = self._calls.rpc("GetPipeline", **key)
        return Pipeline.of(response.pipeline, response.meta)

    def create(self, files: Mapping[str, str], *, idempotency_key: str | None = None) -> Pipeline:
        """Create a pipeline from its files, by path: `pipeline.yml`, and a `.sql` file for each table."""
        spec, key = v1.PipelineSpec(files=files), self._calls.key(idempotency_key)
        response = self._calls.rpc("CreatePipeline", spec=spec, idempotency=key)
        return Pipeline.of(response.pipeline, response.meta)

    def update(self, name: str, files: Mapping[str, str], *, if_version: int | None = None) -> Pipeline:
        """Replace the files of a pipeline, and become its owner."""
        response = self._calls.rpc(
            "UpdatePipeline",
            pipeline_id=self._id(name),
            spec=v1.PipelineSpec(files=files),
            update_mask=FieldMask(paths=["files"]),
            precondition=None if if_version is None else v1.Precondition(expected_version=if_version),
        )
        return Pipeline.of(response.pipeline, response.meta)

    def delete(self, name: str, *, if_version: int | None = None) -> Meta:
        """Delete a pipeline, but not its tables; return its last stored version."""
        condition = None if if_version is None else v1.Precondition(expected_version=if_version)
        return Meta.of(self._calls.rpc("DeletePipeline", pipeline_id=self._id(name), precondition=condition).meta)

    def plan(
        self, name: str | None = None, *, files: Mapping[str, str] | None = None, full: bool = False
    ) -> list[PlannedTable]:
        """Return what a run would do now, in its order; with `files`, as if the pipeline had these."""
        found = self._calls.rpc(
            "PlanPipeline",
            pipeline_id=None if name is None else self._id(name),
            spec=None if files is None else v1.PipelineSpec(files=files),
            full=full,
        )
        return [PlannedTable.of(each) for each in found.tables]

    def start(self, name: str, *, full: bool = False) -> Job:
        """Start a run; return its job, or the running one that does the same. With `full`, all tables are refreshed in full."""
        return Job(self._calls.rpc("StartPipeline", pipeline_id=self._id(name), full=full).job)

    def _id(self, name: str) -> v1.ResourceId:
        if isinstance(name, Id):
            return v1.ResourceId(id=name, kind=v1.RK_PIPELINE)
        found: v1.ResourceId = self._calls.rpc("GetPipeline", display_name=name).pipeline.resource_id
        return found
