"""The worker of a query or function: `python -m skiway.spark_queries.worker FOLDER` confines itself and runs it on Spark.

The query arrives on the standard input: its SQL or the Python code of a function, the options of each table, the token, and where
Spark runs. The worker answers on the standard output with the columns, waits for a line, and sends the rows.

The decorators of `pyspark.pipelines` register functions with a registry, which is ours here: it keeps the function of one table.
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from skiway.sandbox.processes import write_frame
from skiway.spark_jobs.java import ensure_java
from skiway.spark_jobs.java_output import java_process
from skiway.spark_jobs.session import Setting, SparkPlace
from skiway.spark_queries.supervisor import OUT_OF_MEMORY, confine, ephemeral_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MODULE: Final = "pipeline_file"


class CodeError(Exception):
    """The code has failed, or has not returned what it should. The message is for its author."""


def frame_of(python: Mapping[str, Any], frames: Mapping[str, DataFrame]) -> DataFrame:
    """What the function of a table returns. `frames` are the tables that it may read, by the names in the file."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    file = python["file"]
    _read_only_these(frames)
    try:
        made = _function(python)()
    except (PySparkException, CodeError):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the code can raise anything
        traceback.print_exc()
        raise CodeError(f"{_line_of(error, file)}: {type(error).__name__}: {error}") from None
    if not isinstance(made, DataFrame):
        raise CodeError(f"{file}: the function of {python['table']} returned {type(made).__name__}, not a DataFrame")
    if made.isStreaming:
        raise CodeError(f"{file}: the function of {python['table']} returned a stream, which is not supported")
    return made


def empty_frame(spark: SparkSession, columns: str) -> DataFrame:
    """A table without rows, given its columns as text."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns)))
    return spark.createDataFrame([], from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _function(python: Mapping[str, Any]) -> Any:
    """Run the file, and return the function that it declares for the table."""
    from pyspark import cloudpickle
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
    from pyspark.pipelines.output import Output

    functions: dict[str, Any] = {}

    class Registry(GraphElementRegistry):
        def register_output(self, output: Output) -> None:
            """Nothing: the server has read what the table is like."""

        def register_flow(self, flow: Flow) -> None:
            functions[flow.target] = flow.func

        def register_sql(self, sql_text: str, file_path: Path) -> None:  # noqa: ARG002
            raise CodeError("SQL cannot be registered here: put it into a .sql file")

    file, source = python["file"], python["source"]
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    module = ModuleType(_MODULE)
    module.__file__ = file
    sys.modules[_MODULE] = module
    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(module)  # tasks of Spark cannot import it
    with graph_element_registration_context(Registry()):
        exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 - this process exists to run it
    if python["table"] not in functions:
        raise CodeError(f"{file}: no function declared the table {python['table']} when the file was run")
    return functions[python["table"]]


def _read_only_these(frames: Mapping[str, DataFrame]) -> None:
    """Let `spark.table` and `spark.read.table` return these tables. Spark knows no others, except temporary views."""
    from pyspark.sql import SparkSession
    from pyspark.sql.readwriter import DataFrameReader

    for kind in (SparkSession, DataFrameReader):
        usual = kind.table

        def table(self: Any, tableName: str, usual: Any = usual) -> DataFrame:  # noqa: N803 - Spark's name
            found = frames.get(tableName)
            return usual(self, tableName) if found is None else found

        setattr(kind, "table", table)  # noqa: B010 - mypy does not let methods be replaced


def _line_of(error: BaseException, file: str) -> str:
    """The place in the file where an error comes from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not lines and isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f"{file}, line {lines[-1]}" if lines else file


_FIXED: Final[Mapping[str, Setting]] = {
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": False,
}
"""Settings that the operator cannot change, besides those of all jobs: what a query needs to read nothing but its tables."""

_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_UNTRUSTED_ADVICE: Final = "that its certificate is signed by an authority in sql.spark.root_certificates"
_OWN_ERROR: Final = re.compile(r"^\s*skiway\.errors\.\w+: (.*)", re.MULTILINE)
_CONDITION: Final = re.compile(r"(\[[A-Z][A-Z0-9_.]+\] .*)")


def main(arguments: Sequence[str]) -> None:
    """Run the query."""
    folder = Path(arguments[0])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write there
    query = json.loads(sys.stdin.buffer.readline())
    java = ensure_java()
    if query["confined"]:
        certificates = [
            Path(each["rootCertificates"]) for each in query["tables"].values() if "rootCertificates" in each
        ]
        confine(folder, readable=[java.parents[1], java.resolve().parents[1], *certificates], ports=_ports(query))
    from pyspark.errors import PySparkException

    try:
        spark = SparkPlace(query["master"], conf=_settings(query, folder)).only_session()
        frame = _frame(spark, query)
        schema = _columns(frame)
        write_frame(answers, b"S", schema.serialize())
        sys.stdin.buffer.readline()  # until the server reads the rows
        for batch in _batches(frame, schema):
            write_frame(answers, b"B", batch)
        write_frame(answers, b".", b"")
    except CodeError as error:
        write_frame(answers, b"F", str(error).encode(errors="replace"))
    except Exception as error:
        process = java_process()
        end = None if process is None else process.end()
        if end is not None and end.out_of_memory:
            sys.exit(OUT_OF_MEMORY)
        if process is None or end is not None:
            raise  # the process ends without an answer, as if it had been killed itself
        if isinstance(error, PySparkException | NotImplementedError):
            write_frame(answers, b"E", _explained(error).encode())
            return
        traceback.print_exc()  # errors of Java have no class of Spark
        output = "the log of the job" if "python" in query else "the log of the server"
        write_frame(answers, b"E", _explained(error, f"a task failed, and {output} says why").encode())


def _ports(query: Mapping[str, Any]) -> list[int] | None:
    """The ports that the driver needs: those of the server and of Spark's own parts. None if these are not known."""
    master = query["master"]
    if not master.startswith(("local", "spark://")):
        return None
    of_tables = [urlsplit(each["location"]).port for each in query["tables"].values()]
    of_masters = [urlsplit(f"//{each}").port for each in master.removeprefix("spark://").split(",") if ":" in each]
    return sorted({*filter(None, (*of_tables, *of_masters)), *ephemeral_ports()})


def _settings(query: Mapping[str, Any], folder: Path) -> dict[str, Setting]:
    given = dict(query["conf"])
    java = f"-Djava.io.tmpdir={folder} -Duser.home={folder} -XX:-UsePerfData"
    given["spark.driver.extraJavaOptions"] = f"{java} {given.get('spark.driver.extraJavaOptions', '')}".strip()
    return {"spark.sql.warehouse.dir": (folder / "warehouse").as_uri(), **given, **_FIXED}


def _frame(spark: SparkSession, query: Mapping[str, Any]) -> DataFrame:
    from skiway.spark import AirportDataSource

    spark.dataSource.register(AirportDataSource)
    frames = {view: empty_frame(spark, columns) for view, columns in query.get("empty", {}).items()}
    for view, options in query["tables"].items():
        frames[view] = spark.read.format("airport").options(**options).option("token", query["token"]).load()
    if "python" in query:
        python = query["python"]
        return frame_of(python, {written: frames[view] for written, view in python["reads"].items()})
    for view, frame in frames.items():
        frame.createOrReplaceTempView(view)
    found = spark.sql(query["sql"])
    return found.toDF(*_unique(found.columns))


def _columns(frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, timestamp_utc=True)
    except PySparkException:
        kinds = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in frame.schema)
        raise NotImplementedError(
            f"a column has a type that Arrow does not have: {kinds}; cast it to another"
        ) from None


def _batches(frame: DataFrame, schema: pa.Schema) -> Iterator[bytes]:
    """The rows in order, as serialized batches that the tasks make. The driver has one or two partitions at a time."""

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            data = pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()
            yield pa.record_batch({"rows": pa.array([data], pa.binary())})

    for row in frame.mapInArrow(packed, "rows binary").toLocalIterator(prefetchPartitions=True):
        yield bytes(row.rows)


def _unique(names: Sequence[str]) -> list[str]:
    """The names of the columns; those that are equal, apart from their case, have numbers."""
    taken, found = set[str](), list[str]()
    for name in names:
        unique, number = name, 0
        while unique.lower() in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique.lower())
        found.append(unique)
    return found


def _explained(error: Exception, otherwise: str = "") -> str:
    """What Spark says in one line: the message of the data source, or what follows the first name of an error condition."""
    text = str(error)
    found = _OWN_ERROR.search(text) or _CONDITION.search(text)
    line = str(found[1]) if found else otherwise or text.partition("\n")[0]
    return f"{line}, and {_UNTRUSTED_ADVICE}" if _UNTRUSTED in line else line


if __name__ == "__main__":
    main(sys.argv[1:])
