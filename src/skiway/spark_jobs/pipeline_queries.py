"""Queries of pipelines on Spark.

The rows of an input are read by tasks of Spark with the reader of the lake, so deletes, old schemas and object stores are handled
as in every other scan, and the executors need no jars. Spark plans and runs the query, and its tasks write the data files.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import InvalidArgument, PreconditionFailed, Unsupported
from skiway.formats import FILE_ORDINAL, TableName
from skiway.metastore.ingest.rows import Target, Written, write_rows
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.models.incremental import FILE
from skiway.metastore.pipelines.models.statements import EngineResult
from skiway.spark_jobs.session import PINNED, separate_session
from skiway.spark_jobs.tasks import collected, in_tasks, outcomes_of, translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

R = TypeVar("R")

_FILES_PER_TASK: Final = 4

_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
_POSITION: Final = re.compile(r"; line \d+ pos \d+;?\s*$")
_UNRESOLVED: Final = re.compile(r"\[UNRESOLVED_COLUMN[^\]]*\] .*? with name (?P<name>`[^`]+`(?:\.`[^`]+`)*)")
_MARKED: Final = re.compile(r"^== SQL[^\n]*==\n(?P<sql>[^\n]*)\n(?P<blank> *)(?P<marks>\^+)", re.MULTILINE)

log = logging.getLogger("skiway.pipelines")


@dataclass(frozen=True, slots=True)
class SparkQueries:
    """Runs queries on Spark. `spark` is called only if there is something to refresh."""

    spark: Callable[[], SparkSession]

    @contextmanager
    def result(
        self, query: Callable[[Mapping[TableName, str]], str], inputs: Mapping[TableName, Input]
    ) -> Iterator[EngineResult]:
        """The result of a query. It has a session of its own, with its inputs as temporary views, until the block ends."""
        from pyspark.errors import AnalysisException, ParseException

        views = {name: f"pipeline_{uuid.uuid4().hex}" for name in inputs}
        with separate_session(self.spark(), PINNED) as spark:

            def analyzed(inputs: Mapping[TableName, Input]) -> DataFrame:
                for name, read in inputs.items():
                    _rows(spark, name, read).createOrReplaceTempView(views[name])
                frame = spark.sql(query(views))
                frame.schema  # noqa: B018 - Spark Connect analyzes only when it is asked for the columns
                return frame

            try:
                try:
                    frame = analyzed(inputs)
                except AnalysisException:  # perhaps a column is needed that the query does not name
                    frame = analyzed({name: replace(read, selected=None) for name, read in inputs.items()})
            except (AnalysisException, ParseException) as error:
                raise _rejected(error, views) from None
            try:
                yield SparkResult(frame)
            except PreconditionFailed as error:
                if error.key == "ingest.spark" and error.__cause__ is not None:
                    raise _rejected(error.__cause__, views) from None
                raise


@dataclass(frozen=True, slots=True)
class SparkResult:
    """The rows of a query on Spark."""

    frame: DataFrame

    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.frame.schema, timestamp_utc=True)

    def write(self, target: Target) -> Written:
        """Run the query; each task writes the rows of its partition."""
        return Written.all(self.written_by(partial(write_rows, target)), {})

    def written_by(self, write: Callable[[Iterable[pa.RecordBatch]], R]) -> list[R]:
        """Run the query; each task calls `write` with the rows of its partition."""
        return collected(outcomes_of(self.frame, write))

    def values(self) -> pa.Table:
        """Run the query, which returns few rows."""
        with translated():
            return self.frame.toArrow()


def _rows(spark: SparkSession, name: TableName, read: Input) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    if isinstance(read.rows, pa.Table):
        return spark.createDataFrame(read.rows)
    chosen = read.columns.names if read.selected is None else read.selected
    plain = pa.schema([pa.field(each.name, each.type) for each in map(read.columns.field, chosen)])
    try:
        columns = from_arrow_schema(plain, prefer_timestamp_ntz=True)
    except PySparkException:
        kinds = ", ".join(f"{each.name} {each.type}" for each in plain)
        raise Unsupported(
            f"table {name} has a column of a type that Spark does not have; its columns are {kinds}",
            key="pipeline.input.type",
        ) from None
    if read.rows is not None:
        return in_tasks(spark, read.rows.parts, lambda part: part.batches(), columns)
    kept = plain.names
    if read.is_numbered:
        plain = plain.append(pa.field(FILE, pa.int32()))
        columns = columns.add(FILE, "integer")
        kept = [*kept, FILE_ORDINAL]
    snapshot, files = read.snapshot, read.files
    if snapshot is None or files is None or not files.num_rows:
        return spark.createDataFrame([], columns)
    if read.where is not None:
        found = read.handle.plan(snapshot, read.where, schema=read.columns)["ordinal"]
        files = files.filter(pc.is_in(files["ordinal"], value_set=found.combine_chunks()))
    parts = [files.slice(first, _FILES_PER_TASK) for first in range(0, files.num_rows, _FILES_PER_TASK)]
    reader = partial(read.handle.read, snapshot, columns=list(chosen), filter=read.where, schema=read.columns)
    numbered = read.is_numbered

    def batches(part: pa.Table) -> Iterator[pa.RecordBatch]:
        rows = reader(files=part, positions=True) if numbered else reader(files=part)
        return (batch.select(kept).rename_columns(plain.names).cast(plain) for batch in rows)

    return in_tasks(spark, parts, batches, columns)


def _rejected(error: BaseException, views: Mapping[TableName, str]) -> InvalidArgument:
    """The error that Spark rejects a query, or its result for some rows, with the names of the tables.

    Spark knows positions only in a text that was made from the query, so the part of the query is passed on instead.
    """
    text = str(error)
    condition, fragment = _CONDITION.search(text), _fragment(text) or _unresolved(text)
    line = _POSITION.sub("", condition[0] if condition else text.strip().partition("\n")[0])
    for name, view in views.items():
        line, fragment = line.replace(view, str(name)), fragment.replace(view, str(name))
    return InvalidArgument(f"Spark rejects the query: {line}", key="pipeline.query.rejected", fragment=fragment)


def _unresolved(text: str) -> str:
    """The name that Spark does not know; empty if the message is about something else."""
    found = _UNRESOLVED.search(text)
    return "" if found is None else found["name"].rpartition(".")[2].strip("`")


def _fragment(text: str) -> str:
    """The part of a query that Spark marks in its message; empty if there is none."""
    marked = _MARKED.search(text)
    if marked is None:
        return ""
    start = len(marked["blank"])
    return marked["sql"][start : start + len(marked["marks"])]
