"""Lineage as OpenLineage events: which runs made which tables from which others, sent to an HTTP endpoint or appended to a file.

    with lineage.run("sales.totals", "MODEL") as run:     # START
        run.inputs, run.output = ..., ...
                                                          # COMPLETE, FAIL or ABORT

Events are sent by a thread of their own. An endpoint that is slow or away delays and fails no run; events that wait for too long are
dropped, and the log says how many.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from skiway.errors import Cancelled, SkiwayError
from skiway.foundation import extras

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

Kind = Literal["PIPELINE", "MODEL", "COPY"]

PRODUCER: Final = "https://pypi.org/project/skiway"
_WAITING: Final = 1_000
_END_S: Final = 10.0

log = logging.getLogger("skiway.lineage")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table that a run reads or writes, with what of it is read or written. A source outside the lake has a `namespace`."""

    name: str
    columns: pa.Schema | None = None
    version: str = ""
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Assertion:
    """What a run has found about a rule."""

    name: str
    expected: str
    columns: Sequence[str]
    is_met: bool
    observed: str
    is_error: bool


@dataclass(slots=True)
class LineageRun:
    """A run, and what is known about it so far. `columns` are those of inputs behind each column of the output, as names of tables
    and columns. `is_quiet` means that nothing is to be said about it, as it has done nothing.
    """

    job: str
    kind: Kind
    id: str = ""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    parent: LineageRun | None = None
    inputs: Sequence[Dataset] = ()
    output: Dataset | None = None
    columns: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    assertions: Sequence[Assertion] = ()
    sql: str = ""
    is_quiet: bool = False


class Lineage:
    """Sends the lineage of runs, until the block ends. `emit` gets an event; without it nothing is sent."""

    def __init__(
        self,
        emit: Callable[[RunEvent], None] | None = None,
        *,
        namespace: str = "skiway",
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._emit, self._namespace, self._close = emit, namespace, close

    @classmethod
    def to(cls, url: str = "", *, api_key: str = "", file: Path | None = None, namespace: str = "skiway") -> Lineage:
        """Send lineage to an endpoint of OpenLineage, or append it to a file; to neither without them."""
        if not url and file is None:
            return cls()
        with extras.needed("lineage", "lineage as OpenLineage events"):
            from openlineage.client import OpenLineageClient
        auth = {"auth": {"type": "api_key", "apiKey": api_key}} if api_key else {}
        to_url: dict[str, Any] = {"type": "http", "url": url, **auth}
        to_file: dict[str, Any] = {"type": "file", "log_file_path": str(file), "append": True}
        client = OpenLineageClient(config={"transport": to_url if url else to_file})
        sender = _Sender(client.emit)

        def close() -> None:
            sender.close()
            client.close()

        return cls(sender, namespace=namespace, close=close)

    def __enter__(self) -> Lineage:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @contextmanager
    def run(
        self, job: str, kind: Kind, *, parent: LineageRun | None = None, later: bool = False
    ) -> Iterator[LineageRun]:
        """A run that takes as long as the block. If it starts `later`, nothing is sent before its end."""
        if self._emit is None:
            yield LineageRun(job, kind)
            return
        from openlineage.client.uuid import generate_new_uuid

        run = LineageRun(job, kind, str(generate_new_uuid()), parent=parent)
        if not later:
            self._send(run, "START", at=run.started)
        try:
            yield run
        except BaseException as error:
            message = error.message if isinstance(error, SkiwayError) else "internal error; see the log of the worker"
            state = "ABORT" if isinstance(error, Cancelled) else "FAIL"
            self._ended(run, state, later=later, error=message)
            raise
        self._ended(run, "COMPLETE", later=later)

    def _ended(self, run: LineageRun, state: str, *, later: bool, error: str = "") -> None:
        if run.is_quiet:
            return
        if later:
            self._send(run, "START", at=run.started)
        self._send(run, state, at=datetime.now(UTC), error=error)

    def _send(self, run: LineageRun, state: str, *, at: datetime, error: str = "") -> None:
        assert self._emit is not None
        try:
            self._emit(self._event(run, state, at, error))
        except Exception:
            log.exception("the lineage of %s was not sent", run.job)

    def _event(self, run: LineageRun, state: str, at: datetime, error: str) -> RunEvent:
        from openlineage.client import facet_v2 as facets
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

        of_run: dict[str, Any] = {}
        if run.parent is not None:
            parent = facets.parent_run
            of_run["parent"] = parent.ParentRunFacet(
                parent.Run(run.parent.id), parent.Job(self._namespace, run.parent.job), producer=PRODUCER
            )
        if error:
            of_run["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(error, "SQL", producer=PRODUCER)
        of_job: dict[str, Any] = {
            "jobType": facets.job_type_job.JobTypeJobFacet("BATCH", "SKIWAY", run.kind, producer=PRODUCER)
        }
        if run.sql:
            of_job["sql"] = facets.sql_job.SQLJobFacet(run.sql, "spark", producer=PRODUCER)
        is_done = state == "COMPLETE"
        return RunEvent(
            eventTime=at.isoformat(),
            producer=PRODUCER,
            run=Run(run.id, of_run),
            job=Job(self._namespace, run.job, of_job),
            eventType=RunState[state],
            inputs=[self._input(each) for each in run.inputs] if state != "START" else [],
            outputs=[self._output(run, run.output, is_done=is_done)] if run.output and state != "START" else [],
        )

    def _input(self, read: Dataset) -> InputDataset:
        from openlineage.client import facet_v2 as facets
        from openlineage.client.event_v2 import InputDataset

        own: dict[str, Any] = {}
        if read.rows is not None or read.files is not None:
            statistics = facets.input_statistics_input_dataset
            own["inputStatistics"] = statistics.InputStatisticsInputDatasetFacet(
                read.rows, read.bytes, read.files, producer=PRODUCER
            )
        return InputDataset(read.namespace or self._namespace, read.name, facets=_facets(read), inputFacets=own)

    def _output(self, run: LineageRun, made: Dataset, *, is_done: bool) -> OutputDataset:
        from openlineage.client import facet_v2 as facets
        from openlineage.client.event_v2 import OutputDataset

        found, own = _facets(made), dict[str, Any]()
        if run.columns:
            lineage = facets.column_lineage_dataset
            found["columnLineage"] = lineage.ColumnLineageDatasetFacet(
                {
                    column: lineage.Fields([lineage.InputField(self._namespace, *source) for source in sources])
                    for column, sources in run.columns.items()
                },
                producer=PRODUCER,
            )
        if run.assertions:
            quality = facets.data_quality_assertions_dataset
            found["dataQualityAssertions"] = quality.DataQualityAssertionsDatasetFacet(
                [
                    quality.Assertion(
                        each.expected,
                        each.is_met,
                        each.columns[0] if len(each.columns) == 1 else None,
                        severity="error" if each.is_error else "warn",
                        name=each.name,
                        actual=each.observed,
                    )
                    for each in run.assertions
                ],
                producer=PRODUCER,
            )
        if is_done and made.rows is not None:
            statistics = facets.output_statistics_output_dataset
            own["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(
                made.rows, made.bytes, made.files, producer=PRODUCER
            )
        return OutputDataset(made.namespace or self._namespace, made.name, facets=found, outputFacets=own)


def _facets(of: Dataset) -> dict[str, Any]:
    from openlineage.client import facet_v2 as facets

    found: dict[str, Any] = {}
    if of.columns is not None:
        schema = facets.schema_dataset
        fields = [
            schema.SchemaDatasetFacetFields(
                each.name, str(each.type), description=((each.metadata or {}).get(b"doc") or b"").decode() or None
            )
            for each in of.columns
        ]
        found["schema"] = schema.SchemaDatasetFacet(fields, producer=PRODUCER)
    if of.version:
        found["version"] = facets.dataset_version_dataset.DatasetVersionDatasetFacet(of.version, producer=PRODUCER)
    return found


class _Sender:
    """Sends events in order, in a thread."""

    def __init__(self, emit: Callable[[RunEvent], object]) -> None:
        self._emit, self._queue = emit, Queue[Any](_WAITING)
        self._lost = 0
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()

    def __call__(self, event: RunEvent) -> None:
        """Send an event soon."""
        try:
            self._queue.put_nowait(event)
        except Full:
            self._lost += 1
            log.warning("%d events of lineage were dropped, because the endpoint does not accept them", self._lost)

    def close(self) -> None:
        """Send what is waiting, as far as that is possible in a few seconds."""
        self._is_closed.set()
        self._thread.join(_END_S)

    def _work(self) -> None:
        while not (self._is_closed.is_set() and self._queue.empty()):
            try:
                event = self._queue.get(timeout=0.2)
            except Empty:
                continue
            try:
                self._emit(event)
            except Exception as error:  # noqa: BLE001 - a failure of the endpoint concerns nothing else
                log.warning("an event of lineage was not sent: %s", error)
