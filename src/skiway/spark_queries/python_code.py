"""Runs the code of a Python function of a pipeline, in the process that it has for itself.

The decorators of `pyspark.pipelines` register functions with a registry, which is ours here: it keeps the function of one table.
"""

from __future__ import annotations

import base64
import linecache
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CodeError", "empty_frame", "frame_of"]

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
