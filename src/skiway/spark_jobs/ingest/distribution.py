"""Calls of a function for many items, as tasks of Spark."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from skiway.errors import PreconditionFailed, SkiwayError, Unavailable
from skiway.spark_jobs.interruption import check_interrupted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")

RESULT = "place long, outcome binary"

_SQL_STATE: Final = re.compile(r"\bSQLSTATE: ([0-9A-Z]{2})[0-9A-Z]{3}\b")
_DETERMINISTIC: Final = ("0A", "21", "22", "23", "42", "P0")
"""Classes of SQLSTATE: unsupported features, wrong values, violated constraints, wrong SQL, and errors that the query raises."""

log = logging.getLogger("skiway.ingest")


@dataclass(frozen=True, slots=True)
class SparkDistribution:
    """Runs each call as one task of Spark. `spark` is called only if there is something to do."""

    spark: Callable[[], SparkSession]

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, in the order of the items. An error of ours in a task is raised here."""
        if not items:
            return []
        each = list(items)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            for batch in batches:
                places = batch.column(0).to_pylist()
                outcomes = [outcome_of(partial(function, each[place])) for place in places]
                yield pa.record_batch(
                    {"place": pa.array(places, pa.int64()), "outcome": pa.array(outcomes, pa.binary())}
                )

        return collected(self.spark().range(0, len(each), 1, len(each)).mapInArrow(run, RESULT))


def outcome_of(call: Callable[[], object]) -> bytes:
    """The result of a call, or its error if it is one of ours, for the process that collects it."""
    from pyspark import cloudpickle

    try:
        found: tuple[object, ...] = (call(),)
    except SkiwayError as error:
        found = (type(error), error.message, error.key, error.detail, error.params)
    sent: bytes = cloudpickle.dumps(found)  # type: ignore[no-untyped-call]
    return sent


def collected(frame: DataFrame) -> list[Any]:
    """The results in a frame of outcomes, by their places."""
    with translated():
        rows = frame.toArrow()
    by_place = zip(rows["place"].to_pylist(), rows["outcome"].to_pylist(), strict=True)
    return [_result(outcome) for _, outcome in sorted(by_place)]


def _result(outcome: bytes) -> Any:
    found = pickle.loads(outcome)  # noqa: S301 - made by `outcome_of`
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
        log.warning("Spark failed: %s", str(error)[:2000])
        kind = PreconditionFailed if is_deterministic(error) else Unavailable
        raise kind(
            "a task of Spark failed, so nothing was committed; the log of the worker says why", key="ingest.spark"
        ) from error


def is_deterministic(error: BaseException) -> bool:
    """Whether Spark would fail again with the same query and rows. It says so by the class of the SQLSTATE."""
    state = _SQL_STATE.search(str(error))
    return state is not None and state[1] in _DETERMINISTIC
