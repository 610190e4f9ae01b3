"""The SQL shell: read statements from the command line, a file, stdin or a prompt, and print their results.

A thread runs the statements, so that the main thread can react to Ctrl-C while DuckDB or the server works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from skiway.cli.command import progress
from skiway.cli.output import Column, Output, write_documents, write_texts, yaml_lines
from skiway.duckdb.engine import Answer, Engine, Result, Statement, split_statements
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


PROMPT: Final = "skiway> "
MORE: Final = "   ...> "
QUITS: Final = ("exit", "quit", "\\q", ".exit", ".quit")
INTERRUPTED: Final = 130
MIN_WIDTH: Final = 12
HELP: Final = """\
.tables [PATTERN]  list tables; PATTERN is a glob, such as raw.*
.schema [TABLE]    show the CREATE TABLE statement of a table, or of all
.help              show this help
.quit              leave; so do exit and Ctrl-D

End statements with a semicolon. Tables are named catalog.schema.table; USE lake.sales makes lake.sales.people just people.
Ctrl-C cancels the running statement."""


class Shell:
    """Runs statements and prints their results in the format of a call."""

    def __init__(self, call: Call, *, catalog: str, max_rows: int) -> None:
        self._call, self._max_rows = call, max_rows
        self._engine = Engine(catalog)
        self._catalog = catalog
        self._session: Session | None = None
        self.worker = Worker(self.cancel)
        self.is_output_closed = False

    def run(self, given: Statement | str) -> None:
        """Run a statement or a dot command, and print its result."""
        self._print(self._start(given))

    def run_all(self, given: Sequence[Statement | str]) -> None:
        """Run several; in JSON and YAML, their results are one list."""
        if self._call.output not in (Output.json, Output.yaml) or len(given) == 1:
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
        if isinstance(given, str) and given.split()[0] == ".help":
            return Result("help", message=HELP)
        from skiway.duckdb.statements import dot_command, execute

        if self._session is None:
            self._session = self._call.sql_session(self._catalog, self._engine)
        return dot_command(self._session, given) if isinstance(given, str) else execute(self._session, given)

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
        output = self._call.output
        if result.answer is not None and result.answer.names:
            if output.has_documents:
                write_documents(output, self.worker.each(result.answer.documents()))
            else:
                self._print_texts(output, result.answer)
        elif output.has_documents:
            text = json.dumps(_change(result), ensure_ascii=False, indent=2 if output is Output.json else None)
            typer.echo("\n".join(yaml_lines(_change(result))) if output is Output.yaml else text)
            return
        if result.message and output is Output.table:
            typer.echo(result.message)
        elif result.message:
            typer.echo(result.message, err=True)

    def _print_texts(self, output: Output, answer: Answer) -> None:
        columns = [Column(name, right, MIN_WIDTH) for name, right in zip(answer.names, answer.are_numbers, strict=True)]
        if answer.names == ["explain_key", "explain_value"] and output is Output.table:
            for page in answer.texts():
                typer.echo("\n".join(str(row[1]).rstrip("\n") for row in page))
            return
        pages = self.worker.pages(answer.texts())
        write_texts(output, columns, self._limited(pages) if output is Output.table and self._max_rows else pages)

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
            _prompt(call, shell)
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
        if line.startswith(".") and _is_complete(lines):
            found += split_statements("\n".join(lines))
            found.append(line.strip().rstrip(";"))
            lines.clear()
        else:
            lines.append(line)
    return [*found, *split_statements("\n".join(lines))]


def _is_complete(lines: Sequence[str]) -> bool:
    """Whether lines end with a complete statement: a semicolon in a string or a comment does not end it."""
    text = "\n".join(lines).strip()
    if not text or not text.endswith(";"):
        return not text
    try:
        split_statements(text)
    except InvalidArgument as error:
        return "unterminated" not in error.message
    return True


# -- the prompt --------------------------------------------------------------------------------------------------------


def _prompt(call: Call, shell: Shell) -> None:
    with suppress(ImportError):  # enables line editing and history
        import readline  # noqa: F401
    typer.echo(f"DuckDB on the lake at {call.address}. End statements with ; and type .help for help, exit to quit.")
    for text in _read_statements():
        try:
            for each in split_input(text):
                shell.run(each)
        except SkiwayError as error:
            typer.echo(f"error: {error.message}", err=True)
        except KeyboardInterrupt:
            typer.echo("cancelled", err=True)


def _read_statements(read: Callable[[str], str] = input) -> Iterator[str]:
    """Yield what the user types up to each semicolon; Ctrl-C discards the current lines, Ctrl-D or `exit` ends."""
    lines: list[str] = []
    while True:
        try:
            line = read(MORE if lines else PROMPT)
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            lines.clear()
            continue
        if not lines and line.strip().rstrip(";").lower() in QUITS:
            return
        if line.strip() or lines:
            lines.append(line)
        if lines and (lines[0].startswith(".") or _is_complete(lines)):
            yield "\n".join(lines)
            lines.clear()
