"""The SQL shell: read statements from the command line, a file, stdin or a prompt, and print their results.

A thread runs the statements, so that the main thread can react to Ctrl-C while DuckDB or the server works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from skiway.cli.command import progress
from skiway.cli.output import Column, Output, write_documents, write_texts, yaml_lines
from skiway.cli.sql.completion import Names, known_names
from skiway.cli.sql.modes import FOR_PEOPLE, Form, mode_called, write_rows
from skiway.duckdb.engine import Answer, Engine, Result, Statement, is_complete, split_statements
from skiway.errors import InvalidArgument, SkiwayError, Unavailable

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.duckdb.session import Session

T = TypeVar("T")
END: Final[Any] = object()
PAGE_ROWS: Final = 1000
CANCEL_S: Final = 5.0
CANCEL_AGAIN_S: Final = 0.2
SIGNAL_S: Final = 0.2
"""How often the main thread looks for Ctrl-C: the signal does not wake it if another thread receives it."""
PAGE_S: Final = 0.25
"""How long a table waits for more rows after the first ones, to align them."""


class Worker:
    """Runs functions in one thread. Ctrl-C calls `cancel`, which must make the running function end."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="sql")
        self._last: Future[Any] | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Run a function and return its result."""
        pending = self._submit(function)
        self._has_ended(pending)
        return pending.result()

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items that the thread produces."""
        while (item := self.run(lambda: next(items, END))) is not END:
            yield item

    def pages(self, parts: Iterator[list[T]]) -> Iterator[list[T]]:
        """Yield pages, each of them combined from the parts that arrive within a moment."""
        pending: Future[Any] = self._submit(next, parts, END)
        page: list[T] = []
        deadline = inf
        while True:
            if not self._has_ended(pending, deadline):
                yield page
                page, deadline = [], inf
                continue
            part = pending.result()
            if part is END:
                break
            page.extend(part)
            pending = self._submit(next, parts, END)
            deadline = min(deadline, monotonic() + PAGE_S)
            if len(page) >= PAGE_ROWS:
                yield page
                page, deadline = [], inf
        if page:
            yield page

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        self._last = pending = self._threads.submit(function, *arguments)
        return pending

    def _has_ended(self, pending: Future[Any], deadline: float = inf) -> bool:
        """Wait until the function has ended, or for the deadline; return whether it has ended."""
        try:
            while not pending.done() and (left_s := deadline - monotonic()) > 0:
                wait([pending], min(left_s, SIGNAL_S))
        except KeyboardInterrupt:
            self._end(pending)  # so that the next statement can start
            raise
        return pending.done()

    def _end(self, pending: Future[Any]) -> None:
        """Cancel until the function has ended, for a few seconds: one that is between two steps does not notice it."""
        until = monotonic() + CANCEL_S
        while not pending.done() and monotonic() < until:
            self._cancel()
            wait([pending], CANCEL_AGAIN_S)

    def close(self) -> None:
        """Cancel the running function, if there is one, and end the thread."""
        if self._last is not None:
            self._end(self._last)
        self._threads.shutdown(wait=False)


INTERRUPTED: Final = 130
MIN_WIDTH: Final = 12
QUIET: Final = ("mode", "timer")
"""Dot commands that print nothing."""
HELP: Final = """\
.tables [PATTERN]  list tables; PATTERN is a glob, such as raw.*
.schema [TABLE]    show the CREATE TABLE statement of a table, or of all
.mode [MODE]       show or set the form of results: table, box, line, csv, json, ndjson, yaml or markdown
.timer on|off      show how long each statement takes
.help              show this help
.quit              leave; so do exit and Ctrl-D

End statements with a semicolon. Tables are named catalog.schema.table; USE lake.sales makes lake.sales.people just people.
Tab completes names and keywords. Ctrl-C cancels the running statement."""


class Shell:
    """Runs statements and prints their results in the format of a call."""

    def __init__(self, call: Call, *, catalog: str, max_rows: int) -> None:
        self._call, self._max_rows = call, max_rows
        self._mode: Output | Form = call.output
        self._has_timer = False
        self._engine = Engine(catalog)
        self._catalog = catalog
        self._session: Session | None = None
        self.worker = Worker(self.cancel)
        self.is_output_closed = False

    def run(self, given: Statement | str) -> None:
        """Run a statement or a dot command, and print its result."""
        began, has_timer = monotonic(), self._has_timer
        self._print(self._start(given))
        if has_timer:
            sys.stdout.flush()
            typer.echo(f"{monotonic() - began:.3f} s", err=True)

    def run_all(self, given: Sequence[Statement | str]) -> None:
        """Run several; in JSON and YAML, their results are one list."""
        sets_mode = any(isinstance(each, str) and each.split()[0] == ".mode" for each in given)
        if sets_mode or self._mode not in (Output.json, Output.yaml) or len(given) == 1:
            for number, each in enumerate(given, start=1):
                try:
                    self.run(each)
                    sys.stdout.flush()
                except BrokenPipeError:
                    self.is_output_closed = True
                    if number == len(given):
                        raise  # nothing is lost
                    raise Unavailable(
                        f"the output was closed: the statements after number {number} were not run"
                    ) from None
            return
        write_documents(self._call.output, [self._document(self._start(each)) for each in given])

    def _start(self, given: Statement | str) -> Result:
        self._engine.is_cancelled = False
        with progress("running the statement"):
            return self.worker.run(lambda: self._execute(given))

    def _execute(self, given: Statement | str) -> Result:
        if isinstance(given, Statement) and given.reads_no_table:
            return Result("select", self._engine.query(given.text))
        if isinstance(given, str) and (result := self._setting(*given.split(None, 1))) is not None:
            return result
        from skiway.duckdb.statements import dot_command, execute

        session = self._connected()
        return dot_command(session, given) if isinstance(given, str) else execute(session, given)

    def _setting(self, command: str, value: str = "") -> Result | None:
        """Run a dot command about the shell itself; return None if it is another one."""
        value = value.strip()
        match command:
            case ".help":
                return Result("help", message=HELP)
            case ".mode":
                self._mode = mode_called(value) if value else self._mode
                return Result("mode", message="" if value else self._mode.value)
            case ".timer":
                if value not in ("on", "off"):
                    raise InvalidArgument(f".timer {value or 'alone'} is not a setting: write .timer on or .timer off")
                self._has_timer = value == "on"
                return Result("timer")
        return None

    def _connected(self) -> Session:
        if self._session is None:
            self._session = self._call.sql_session(self._catalog, self._engine)
        return self._session

    def names(self) -> Names:
        """Return the names that Tab completes."""
        return self.worker.run(lambda: known_names(self._connected()))

    def cancel(self) -> None:
        """Cancel the running statement, here and on the server."""
        self._engine.cancel()
        if self._session is not None:
            self._session.cancel()

    def close(self, *, at_once: bool = False) -> None:
        """Cancel what is running and close all connections.

        With `at_once`, the end of the process closes them: DuckDB would wait for threads that read from the server.
        """
        self.cancel()
        if not at_once:
            self.worker.close()
            (self._session or self._engine).close()

    # -- results -------------------------------------------------------------------------------------------------------

    def _print(self, result: Result) -> None:
        output = self._mode
        has_documents = isinstance(output, Output) and output.has_documents
        if result.answer is not None and result.answer.names:
            if isinstance(output, Output) and has_documents:
                write_documents(output, self.worker.each(result.answer.documents()))
            else:
                self._print_texts(output, result.answer)
        elif result.statement in QUIET and not result.message:
            return
        elif has_documents:
            text = json.dumps(_change(result), ensure_ascii=False, indent=2 if output is Output.json else None)
            typer.echo("\n".join(yaml_lines(_change(result))) if output is Output.yaml else text)
            return
        if result.message and output in FOR_PEOPLE:
            typer.echo(result.message)
        elif result.message:
            typer.echo(result.message, err=True)

    def _print_texts(self, output: Output | Form, answer: Answer) -> None:
        columns = [Column(name, right, MIN_WIDTH) for name, right in zip(answer.names, answer.are_numbers, strict=True)]
        if answer.names == ["explain_key", "explain_value"] and output in FOR_PEOPLE:
            for page in answer.texts():
                typer.echo("\n".join(str(row[1]).rstrip("\n") for row in page))
            return
        pages = self.worker.pages(answer.texts())
        pages = self._limited(pages) if output in FOR_PEOPLE and self._max_rows else pages
        if isinstance(output, Form):
            write_rows(output, columns, pages)
        else:
            write_texts(output, columns, pages)

    def _limited(self, pages: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Yield the first rows; the query is not read further than that."""
        left = self._max_rows
        for page in pages:
            yield page[:left]
            if len(page) > left:
                self.cancel()
                sys.stdout.flush()
                typer.echo(f"only the first {self._max_rows:,} rows are shown; --max-rows 0 shows all", err=True)
                return
            left -= len(page)

    def _document(self, result: Result) -> str:
        """Return a result as JSON; numbers have all their digits."""
        if result.answer is None or not result.answer.names:
            return json.dumps(_change(result), ensure_ascii=False)
        rows = ",\n".join(self.worker.each(result.answer.documents()))
        return f"[{rows}]"


def _change(result: Result) -> dict[str, Any]:
    return {"statement": result.statement, "count": result.count, "message": result.message}


def run(call: Call, text: str | None, file: Path | None, *, catalog: str, max_rows: int) -> None:
    """Run the given statements; without any on a terminal, open a prompt."""
    is_interactive = text is None and file is None and sys.stdin.isatty()
    given = [] if is_interactive else split_input(_read_input(text, file))
    if not given and not is_interactive:
        raise InvalidArgument("there is no statement to run: give one, such as skiway sql 'SELECT 1'")
    shell, at_once = Shell(call, catalog=catalog, max_rows=max_rows), False
    try:
        if is_interactive:
            _converse(call, shell)
        else:
            shell.run_all(given)
            sys.stdout.flush()
    except KeyboardInterrupt:
        at_once = True
        typer.echo("skiway: cancelled", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shell.close(at_once=at_once or shell.is_output_closed)


def _read_input(text: str | None, file: Path | None) -> str:
    if text is not None and file is not None:
        raise typer.BadParameter("give statements or a file, not both", param_hint="--file")
    if file is None:
        return sys.stdin.read() if text is None else text
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"cannot read the file {file}: {reason}") from error


def split_input(text: str) -> list[Statement | str]:
    """Split text into statements and dot commands, which are lines between statements that begin with a dot."""
    found: list[Statement | str] = []
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(".") and is_complete("\n".join(lines)):
            found += split_statements("\n".join(lines))
            found.append(line.strip().rstrip(";"))
            lines.clear()
        else:
            lines.append(line)
    return [*found, *split_statements("\n".join(lines))]


def _converse(call: Call, shell: Shell) -> None:
    from skiway.cli.sql.prompt import Prompt

    typer.echo(f"DuckDB on the lake at {call.address}. End statements with ; and type .help for help, exit to quit.")
    for text in Prompt(shell.names).statements():
        try:
            for each in split_input(text):
                shell.run(each)
        except SkiwayError as error:
            typer.echo(f"error: {error.message}", err=True)
        except KeyboardInterrupt:
            typer.echo("cancelled", err=True)
