"""The worker's side of Python functions, with programs that answer as their processes do, or as hostile ones."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.errors import Cancelled, InvalidArgument, LimitExceeded, SkiwayError, Unavailable
from skiway.formats import Snapshot, TableHandle, TableName
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.lineage import InputState
from skiway.metastore.pipelines.python_files import parse_python
from skiway.metastore.reconcile.outcomes import Control
from skiway.security import LeasedJob
from skiway.spark_queries.engine import SparkFunctions, SparkPlacement
from skiway.telemetry.logs import CollectedLog, collecting
from spark_queries.test_engine import ANSWER, COLUMNS, ROWS

JOB = LeasedJob("a1", "job-1", 1)
TOKEN = "canary-token-4711"
SOURCE = """
from pyspark import pipelines as dp
@dp.materialized_view
def daily():
    return spark.table("orders").join(spark.table("other.empty"))
"""
(FUNCTION,) = parse_python(SOURCE, file="daily.py")


class Table:
    """A table of the lake, as far as a request describes it."""

    def __init__(self) -> None:
        self.schema = self

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])

    def schema_at(self, _: Snapshot) -> Table:
        return self


def inputs() -> dict[TableName, Input]:
    handle = cast("TableHandle", Table())
    return {
        TableName((), "orders"): Input(
            handle, cast("Snapshot", object()), None, InputState("t-1", 7, ""), ("lake", "a", "v1.2", 'or"ders')
        ),
        TableName(("other",), "empty"): Input(handle, None, None, InputState("t-2", 0, ""), ("lake", "main", "empty")),
    }


class Functions:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.issued: list[tuple[LeasedJob, list[str]]] = []

    def __call__(self, program: str, **limits: Any) -> SparkFunctions:
        """What runs a program instead of the code of functions."""
        file = self._folder / "program.py"
        file.write_text(ANSWER + program)

        def token(job: LeasedJob, tables: Any) -> str:
            self.issued.append((job, sorted(tables)))
            return TOKEN

        return SparkFunctions(
            SparkPlacement(command=[sys.executable, str(file)]), lambda: "grpc://127.0.0.1:50051/", token, **limits
        )


@pytest.fixture
def functions(tmp_path: Path) -> Functions:
    return Functions(tmp_path)


def read(spark: SparkFunctions, control: Control | None = None) -> list[int]:
    with spark.for_job(JOB).result(FUNCTION, inputs(), control or Control()) as result:
        assert result.columns() == pa.schema({"id": pa.int64()})
        rows = cast("Any", result).process.rows()
        return [value for batch in rows for value in batch.column("id").to_pylist()]


def test_process_gets_the_code_its_inputs_and_a_token_for_them(functions: Functions, tmp_path: Path) -> None:
    place = tmp_path / "request.json"
    assert read(functions(f"open({str(place)!r}, 'w').write(json.dumps(query))\n{ROWS}")) == [1, 2, 3, 1, 2, 3]
    request: Mapping[str, Any] = json.loads(place.read_text())
    assert request["python"] == {
        "file": "daily.py",
        "source": SOURCE,
        "table": "daily",
        "reads": {"orders": "input_0", "other.empty": "input_1"},
    }
    assert request["tables"] == {
        "input_0": {
            "location": "grpc://127.0.0.1:50051/lake",
            "table": '"a.v1\\.2"."or""ders"',
            "versionAsOf": "7",
        }
    }
    assert list(request["empty"]) == ["input_1"]
    assert (request["token"], request["confined"]) == (TOKEN, True)
    assert functions.issued == [(JOB, ["t-1", "t-2"])]


@pytest.mark.parametrize(
    ("program", "limits", "expected", "message"),
    [
        (COLUMNS + "sys.stdin.read()", {"seconds": 0.5}, LimitExceeded, r"0\.5 s.*\(pipelines\.python\.timeout_seconds"),
        (COLUMNS + "os._exit(70)", {}, LimitExceeded, r"the function used more than 4000 MB.*pipelines\.python\.memory"),
        (COLUMNS + "os._exit(71)", {}, LimitExceeded, "the function started more than 200 processes"),
        ('write(b"F", b"daily.py, line 4: \\x1b[2J\\nforged\\x00")', {}, InvalidArgument,
         "^the function failed: daily.py, line 4: \N{REPLACEMENT CHARACTER}\\[2J forged\N{REPLACEMENT CHARACTER}$"),
        ('write(b"F", b"x" * 1_000_000)', {}, InvalidArgument, "^the function failed: x{2000}$"),
        ('write(b"S", b"no schema")', {}, Unavailable, "the process of the function on Spark"),
        (COLUMNS + 'write(b"B", b"no batch")', {}, Unavailable, "the process of the function on Spark"),
        (COLUMNS + 'write(b"B", rows.serialize().to_pybytes()[:-16])', {}, Unavailable, "the process of the function"),
    ],
)  # fmt: skip
def test_limits_and_failures(
    functions: Functions, program: str, limits: dict[str, Any], expected: type[SkiwayError], message: str
) -> None:
    with pytest.raises(expected, match=message):
        read(functions(program, **limits))


def test_batch_that_is_huge_when_decoded_is_refused_before_it_is_decoded(functions: Functions) -> None:
    bomb = """
import struct
column = pa.array([0] * 100_000)
options = pa.ipc.IpcWriteOptions(compression="zstd")

sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
    writer.write_batch(pa.record_batch({"id": column}))
stream = sink.getvalue().to_pybytes()
messages = pa.ipc.MessageReader.open_stream(stream)
messages.read_next_message()
payload = bytearray(messages.read_next_message().serialize().to_pybytes())
place = payload.index(struct.pack("<q", 800_000))
payload[place:place + 8] = struct.pack("<q", 1 << 40)
write(b"B", bytes(payload))
"""
    with pytest.raises(LimitExceeded, match="takes 1099511627776 bytes when it is decoded"):
        read(functions(COLUMNS + bomb))


def test_cancelled_job_ends_the_process(functions: Functions) -> None:
    stop = threading.Event()

    class Stopping(Control):
        def check(self) -> None:
            if stop.is_set():
                raise Cancelled("job job-1 stops: cancelled", key="job.cancelled")

    timer = threading.Timer(0.5, stop.set)
    timer.start()
    with pytest.raises(Cancelled):
        read(functions("sys.stdin.read()"), Stopping())
    timer.join()


def test_what_the_processes_print_is_in_the_log_of_the_job(
    functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    printing = "print('said', query['token'], '\\x1b[2J', file=sys.stderr); print('y' * 2500, file=sys.stderr)\n"
    with collecting(CollectedLog("a1")) as log, caplog.at_level(logging.DEBUG):
        read(functions(printing + ROWS))
    lines = log.text.splitlines()
    assert lines == ["said **** \\u001b[2J", "y" * 1000, "y" * 1000, "y" * 500]
    assert TOKEN not in log.text + caplog.text + repr(functions(ROWS))


def test_failed_start_is_reported(functions: Functions) -> None:
    def nowhere() -> str:
        raise Unavailable("the gRPC door is not open yet", key="server.starting")

    spark = functions(ROWS)
    failing: Callable[[], str] = nowhere
    with pytest.raises(Unavailable, match="not open yet"):
        read(SparkFunctions(spark.placement, failing, spark.token))
