"""Tasks of Spark: calls of a function for many items, and batches and files that tasks make of parts."""

from __future__ import annotations

import logging
import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from skiway.errors import PreconditionFailed, SkiwayError, Unavailable
from skiway.metastore.ingest.rows import Target, write_rows
from skiway.spark_jobs.interruption import check_interrupted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
R = TypeVar("R")

RESULT: Final = "place long, outcome binary"
_TASKS_PER_CORE: Final = 4  # more would take longer to start than small files to read

_SQL_STATE: Final = re.compile(r"\bSQLSTATE: ([0-9A-Z]{2})[0-9A-Z]{3}\b")
_DETERMINISTIC: Final = ("0A", "21", "22", "23", "42", "P0")
"""Classes of SQLSTATE: unsupported features, wrong values, violated constraints, wrong SQL, and errors that the query raises."""

_MARK: Final = "@skiway@"
_SENT_ERROR: Final = re.compile(f"{_MARK}([A-Za-z0-9+/=]+){_MARK}")
"""An error of ours in a task whose result is not an outcome: Spark passes on its text."""

log = logging.getLogger("skiway.ingest")


@dataclass(frozen=True, slots=True)
class SparkDistribution:
    """Runs each call as one task of Spark. `spark` is called only if there is something to do."""

    spark: Callable[[], SparkSession]

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, in the order of the items. An error of ours in a task is raised here."""
        if not items:
            return []
        calls = [(place, partial(function, item)) for place, item in enumerate(items)]
        return collected(in_tasks(self.spark(), calls, lambda call: [outcome(*call)], RESULT))


def in_tasks(
    spark: SparkSession,
    parts: Sequence[T],
    batches: Callable[[T], Iterable[pa.RecordBatch]],
    columns: StructType | str,
    *,
    are_small: bool = False,
) -> DataFrame:
    """The batches of each part, which tasks of Spark make: one for each part, or if the parts `are_small`, a few for each core."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    few = len(parts) if context is None or not are_small else _TASKS_PER_CORE * context.defaultParallelism

    def run(numbers: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        try:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from batches(parts[number])
        except SkiwayError as error:
            raise RuntimeError(f"{_MARK}{b64encode(_pickled(_facts(error))).decode()}{_MARK}") from error

    return spark.range(0, len(parts), 1, max(1, min(few, len(parts)))).mapInArrow(run, columns)


def written_by_tasks(frame: DataFrame, target: Target, names: Sequence[str] | None = None) -> DataFrame:
    """The outcomes of tasks, each of which writes the rows of its partition. Columns get these `names`, if they are given."""

    def write(batches: Iterable[pa.RecordBatch]) -> object:
        return write_rows(target, batches if names is None else (batch.rename_columns(names) for batch in batches))

    return outcomes_of(frame, write)


def outcomes_of(frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], object]) -> DataFrame:
    """The outcomes of tasks, each of which calls the function with the rows of its partition."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield outcome(0, lambda: function(batches))

    return frame.mapInArrow(run, RESULT)


def outcome(place: int, call: Callable[[], object]) -> pa.RecordBatch:
    """The result of a call, or its error if it is one of ours, for the process that collects it."""
    try:
        found: tuple[object, ...] = (call(),)
    except SkiwayError as error:
        found = _facts(error)
    sent = _pickled(found)
    return pa.record_batch({"place": pa.array([place], pa.int64()), "outcome": pa.array([sent], pa.binary())})


def _facts(error: SkiwayError) -> tuple[object, ...]:
    return type(error), error.message, error.key, error.detail, error.params


def _pickled(value: object) -> bytes:
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def collected(frame: DataFrame) -> list[Any]:
    """The results in a frame of outcomes, by their places."""
    with translated():
        rows = frame.toArrow()
    by_place = zip(rows["place"].to_pylist(), rows["outcome"].to_pylist(), strict=True)
    return [_result(sent) for _, sent in sorted(by_place)]


def _result(sent: bytes) -> Any:
    found = pickle.loads(sent)  # noqa: S301 - made by `outcome`
    if len(found) == 1:
        return found[0]
    error, message, key, detail, params = found
    raise error(message, key=key, detail=detail, **params)


@contextmanager
def translated() -> Iterator[None]:
    """Run a block that waits for Spark. Its text can contain anything, so it is only in the log."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        check_interrupted(error)
        if (ours := _SENT_ERROR.search(str(error))) is not None:
            _result(b64decode(ours[1]))
        log.warning("Spark failed: %s", str(error)[:2000])
        kind = PreconditionFailed if is_deterministic(error) else Unavailable
        raise kind(
            "a task of Spark failed, so nothing was committed; the log of the worker says why", key="ingest.spark"
        ) from error


def is_deterministic(error: BaseException) -> bool:
    """Whether Spark would fail again with the same query and rows. It says so by the class of the SQLSTATE."""
    state = _SQL_STATE.search(str(error))
    return state is not None and state[1] in _DETERMINISTIC
