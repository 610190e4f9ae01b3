"""Pipelines: tables that are derived from other tables by queries in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from skiway.client.metastore.jobs import Job
from skiway.client.metastore.named import FromMessages, NamedCollection, NamedRecord
from skiway.model import v1
from skiway.resources import PIPELINE

__all__ = ["Pipeline", "Pipelines", "PlannedTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(NamedRecord):
    """A pipeline. `files` are texts by path; `owner` is the caller whose rights its runs have."""

    owner: str
    files: Mapping[str, str]
    updated_at: datetime | None = None


def _pipeline(pipeline: v1.Pipeline, *meta: v1.MutationMeta) -> Pipeline:
    return Pipeline.of(pipeline, *meta, owner=pipeline.owner.subject, files=dict(sorted(pipeline.files.items())))


@dataclass(frozen=True, slots=True)
class PlannedTable(FromMessages):
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


def _planned(planned: v1.PlannedTable) -> PlannedTable:
    columns: dict[str, list[str]] = {}
    for each in planned.columns:
        columns.setdefault(each.column, []).append(f"{each.source_table}.{each.source_column}")
    return PlannedTable.of(planned, reads=list(planned.reads), last_action=planned.last_action or None, columns=columns)


class Pipelines(NamedCollection[Pipeline]):
    """`lake.pipelines`, by name, which is unique in the account."""

    __slots__ = ()
    _resource, _record = PIPELINE, staticmethod(_pipeline)

    def create(self, files: Mapping[str, str], *, idempotency_key: str | None = None) -> Pipeline:
        """Create a pipeline from its files, by path: `pipeline.yml`, and a `.sql` file for each table."""
        return self._create(None, {"files": files}, idempotency_key)

    def update(self, name: str, files: Mapping[str, str], *, if_version: int | None = None) -> Pipeline:
        """Replace the files of a pipeline, and become its owner."""
        return self._update(name, None, {"files": files}, if_version)

    def plan(
        self, name: str | None = None, *, files: Mapping[str, str] | None = None, full: bool = False
    ) -> list[PlannedTable]:
        """Return what a run would do now, in its order; with `files`, as if the pipeline had these."""
        found = self._calls.rpc(
            "PlanPipeline",
            **({} if name is None else self._key(name)),
            spec=None if files is None else v1.PipelineSpec(files=files),
            full=full,
        )
        return list(map(_planned, found.tables))

    def start(self, name: str, *, full: bool = False) -> Job:
        """Start a run; return its job, or the running one that does the same. With `full`, all tables are refreshed in full."""
        return Job(self._calls.rpc("StartPipeline", **self._key(name), full=full).job)
