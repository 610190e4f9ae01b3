"""The worker process: `python -m skiway.sandbox.worker MEMORY_BYTES` runs requests from its standard input until it ends."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from itertools import takewhile
from types import TracebackType
from typing import Any, Final

import duckdb
import pyarrow as pa

from skiway.sandbox.processes import (
    OUT_OF_MEMORY,
    READY,
    decode_table,
    encode_table,
    exactly,
    read_message,
    write_message,
)

NO_MEMORY: Final = (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError)
"""The errors of Python, DuckDB and Arrow if memory is not sufficient."""


SETTINGS: Final = {
    "arrow_lossless_conversion": "true",
    # filters that DuckDB pushes into Arrow fail for extension types and drop NaN
    "disabled_optimizers": "filter_pushdown,join_filter_pushdown",
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
}
"""Settings for DuckDB over Arrow tables: nothing outside of them can be reached."""
_LOCKED: Final = {**SETTINGS, "autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
REQUEST_BYTES: Final = 1 << 40  # the server is trusted
_WATCH_S: Final = 1.0
_SPARE: Final = 256 * 1024 * 1024  # for Python, Arrow and small requests and responses, besides DuckDB's memory


class _WithoutPandas(MetaPathFinder):
    """Makes pyarrow and DuckDB believe that pandas is not installed.

    pyarrow imports it for the first scalar. That would take 40 % of the time in which a worker starts, and a fifth of its memory.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("workers do not use pandas", name=fullname)


def run_worker(main: Callable[[Sequence[str]], None]) -> None:
    """Run the main function of a worker. If it fails, the server learns why, but nothing about SQL or values."""
    sys.meta_path.insert(0, _WithoutPandas())
    faulthandler.enable()  # a crash prints where it happened
    sys.excepthook = _print_place
    try:
        main(sys.argv[1:])
    except NO_MEMORY:
        os._exit(OUT_OF_MEMORY)


def _print_place(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:  # noqa: ARG001
    """Print an error without its message, which could contain SQL or values."""
    lines = [f'File "{each.filename}", line {each.lineno}, in {each.name}' for each in traceback.extract_tb(trace)]
    sys.stderr.write("\n".join([*lines, f"{kind.__module__}.{kind.__qualname__}", ""]))


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the server closes the pipe."""
    end_with_server()
    memory_bytes = int(arguments[0])
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write there
    config: dict[str, Any] = {**_LOCKED, "memory_limit": f"{memory_bytes}B"}
    database = duckdb.connect(":memory:", config=config)
    database.from_arrow(pa.table({"warm": pa.nulls(1)})).fetchall()  # loads what DuckDB loads late
    limit_process(memory_bytes, descriptors=32)
    responses.write(READY)
    responses.flush()
    while True:
        try:
            header, parts = read_message(lambda size: exactly(requests, size), REQUEST_BYTES)
        except EOFError:
            return
        tables = {name: decode_table(part) for name, part in zip(header["tables"], parts, strict=True)}
        answer, found = _answer(database, header, tables)
        write_message(responses, answer, found)
        del tables, found


def end_with_server() -> None:
    """End this process soon after the server that started it, which may have been killed while a query runs."""
    server = os.getppid()

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, name="server-watch", daemon=True).start()


def limit_process(memory_bytes: int, *, descriptors: int) -> None:
    """Set limits that the kernel enforces, for what this process does from now on."""
    data = next(line for line in open("/proc/self/status") if line.startswith("VmData"))  # noqa: PTH123, SIM115
    most = int(data.split()[1]) * 1024 + memory_bytes + _SPARE
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = descriptors if most_files == resource.RLIM_INFINITY else min(descriptors, most_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))


def _answer(
    database: duckdb.DuckDBPyConnection, header: dict[str, Any], tables: dict[str, pa.Table]
) -> tuple[dict[str, Any], list[pa.Buffer]]:
    """Run one request. The soft limit on time ends it without the end of this process."""
    cursor = database.cursor()
    timer = threading.Timer(header["timeout_s"], cursor.interrupt)
    timer.daemon = True
    timer.start()
    try:
        for expression in header["expressions"]:
            duckdb.SQLExpression(expression)  # raises unless it is exactly one
        if header["select"] is None:
            found = _run(cursor, header["statements"], tables)
        else:
            rows = cursor.from_arrow(tables["rows"])
            value = duckdb.SQLExpression(header["select"]).alias("value")
            # With a column beside it, DuckDB 2.0 rejects aggregates, as older versions always do.
            found = [rows.select(value, duckdb.ColumnExpression(rows.columns[0])).to_arrow_table().select([0])]
        return {"ok": True}, [encode_table(table) for table in found]
    except duckdb.InterruptException:
        return {"error": "time"}, []
    except NO_MEMORY:
        return {"error": "memory"}, []
    except (duckdb.Error, _NotOne) as error:
        return {"error": "sql", "message": shown_error(error)}, []
    finally:
        timer.cancel()
        cursor.close()


class _NotOne(ValueError):
    """A text that must be one statement is several, or none."""


def _run(cursor: duckdb.DuckDBPyConnection, statements: list[str], tables: dict[str, pa.Table]) -> list[pa.Table]:
    """Run the statements; the result of each."""
    for name, rows in tables.items():
        cursor.register(name, rows)
    found = []
    for text in statements:
        parsed = cursor.extract_statements(text)
        if len(parsed) != 1:
            raise _NotOne(f"expected one statement, found {len(parsed)}")
        cursor.execute(parsed[0])
        found.append(cursor.to_arrow_table() if cursor.description else pa.table({}))
    return found


def shown_error(error: Exception) -> str:
    """The message in one line, with DuckDB's suggestions, but without the part of the query that it points at.

    What DuckDB reports as JSON is shortened to its message.
    """
    text = str(error)
    try:
        return str(json.loads(text)["exception_message"])
    except (ValueError, KeyError, TypeError):
        lines = takewhile(lambda line: line.strip() and not line.startswith("LINE "), text.splitlines())
        return " ".join(map(str.strip, lines)) or type(error).__name__


if __name__ == "__main__":
    run_worker(main)
