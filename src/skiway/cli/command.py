"""Commands that call a server: how they connect, show progress, print results and explain errors."""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import typer
from typer.models import ParameterInfo

from skiway.cli import options
from skiway.cli.options import (
    HOME,
    Account,
    Config,
    Home,
    OutputOption,
    Server,
    Set,
    Token,
    load_settings,
    prepare_grpc,
)
from skiway.cli.output import Output
from skiway.errors import InvalidArgument, NotFound, SkiwayError, Unauthorized, Unavailable
from skiway.foundation.causes import suggestion

if TYPE_CHECKING:
    from skiway.client import AirportClient, Metastore
    from skiway.config import Settings
    from skiway.duckdb.engine import Engine
    from skiway.duckdb.session import Session as SqlSession

T = TypeVar("T")
QUIET_S: Final = 2.0
"""How long a command may take before it shows that it works."""


@contextmanager
def progress(label: str) -> Iterator[Bar]:
    """Show that the block works, if it takes longer than two seconds.

    The bar is on stderr, only on a terminal, and disappears at the end of the block. End it before you print.
    """
    shown = Bar(label)
    timer = threading.Timer(QUIET_S, shown.begin)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        shown.end()


def collected(label: str, items: Iterable[T]) -> list[T]:
    """All items, with their number as progress."""
    found: list[T] = []
    with progress(label) as bar:
        for each in items:
            found.append(each)
            bar.count(len(found))
    return found


class Bar:
    """A bar that moves without an end, since the amount of work is not known."""

    def __init__(self, label: str) -> None:
        self._label, self._done, self._is_over = label, 0, False
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._update: Callable[[str], None] | None = None

    def begin(self) -> None:
        """Show the bar, unless it has ended."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from skiway.cli.rendering import console

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
        with self._lock:
            if self._is_over:
                return
            bar = Progress(
                *columns,
                console=console(stderr=True),
                transient=True,
                redirect_stdout=False,  # it would send the result to stderr
                redirect_stderr=False,
            )
            self._stack.enter_context(bar)
            task = bar.add_task(self._text(), total=None)
            self._update = lambda text: bar.update(task, description=text)

    def count(self, done: int) -> None:
        """Set the number of things that are done."""
        self._done = done
        if (update := self._update) is not None:
            update(self._text())

    def end(self) -> None:
        """Remove the bar. It does not come back."""
        with self._lock:
            self._is_over, self._update = True, None
            self._stack.close()

    def _text(self) -> str:
        return f"{self._label}, {self._done:,} so far" if self._done else self._label


DEFAULT_SERVER: Final = "127.0.0.1:50051"
DEFAULT_ACCOUNT: Final = "default"
READY_FILE: Final = "ready.json"
TIMEOUT_S: Final = 60.0
CONNECTION: Final = ("server", "token", "account")
"""The options that say where the server is, and who calls."""
MAX_CANDIDATES: Final = 1000
HINTS: Final = {
    "catalog.not_empty": "--cascade deletes its contents too",
    "namespace.not_empty": "--cascade deletes its contents too",
    "connector.not.active": "resume it with: skiway connectors update … --resume",
}
"""What to add to errors with these keys."""


class Printing:
    """How a command prints its result, in the format that its caller chose."""

    output: Output

    @property
    def is_for_people(self) -> bool:
        """Whether to print tables and messages, and not one document."""
        return self.output is Output.table

    def print_rows(self, records: Iterable[object], columns: Sequence[str], *, empty: str) -> None:
        """Print records: these columns for people, all fields for programs. `empty` is the message for no records."""
        from skiway.cli import rendering

        if self.output not in (Output.table, Output.markdown):
            rendering.write_records(self.output, records, columns, empty=empty)
            return
        shown = collected("reading", records)
        damaged = sum(1 for each in shown if rendering.fields_of(each).get("damage"))
        wanted = [columns[0], "damage", *columns[1:]] if damaged else columns
        rendering.write_records(self.output, shown, wanted, empty=empty)
        if damaged:
            typer.echo(f"{damaged} of {len(shown)} records are damaged: run skiway check on the server", err=True)

    def print_record(self, record: object) -> None:
        """Print one record, one line for each field."""
        from skiway.cli import rendering

        rendering.write_record(self.output, record)

    def print_result(self, message: str, record: object) -> None:
        """Print the result of a change: a message, or the record for programs."""
        if self.is_for_people:
            typer.echo(message)
        else:
            self.print_record(record)

    def print_for_programs(self, records: Iterable[object], columns: Sequence[str]) -> None:
        """Print records unless people have seen each of them already."""
        from skiway.cli import rendering

        if not self.is_for_people:
            rendering.write_records(self.output, records, columns, empty="")


@dataclass(frozen=True)
class Call(Printing):
    """One run of a command: its clients, which connect at the first use, and its output.

    `token` is the given one; `renewed_token` is what the clients send.
    """

    server: str | None = None
    token: str | None = None
    account: str | None = None
    output: Output = Output.table

    @classmethod
    def from_environment(cls, given: Mapping[str, Any] = {}) -> Call:
        """Return a call of a command. Environment variables stand for options that are not given."""
        server, token, account = (
            given.get(name) or os.environ.get(f"SKIWAY_{name.upper()}") or None for name in CONNECTION
        )
        return cls(server, token, account)

    @cached_property
    def address(self) -> str:
        """The server's address: the given one, that of the server in the home, or the default."""
        return self.server or _address_in(Path(os.environ.get("SKIWAY_HOME") or HOME)) or DEFAULT_SERVER

    @property
    def location(self) -> str:
        """The server's address as a location of Airport."""
        prepare_grpc()
        from skiway.client.connection import Location

        return Location.with_scheme(self.address)

    @cached_property
    def renewed_token(self) -> str | Callable[[], str | None]:
        """The token of the caller: the given one, else the one of the login to this server, which is renewed when it expires."""
        if self.token is not None:
            return self.token
        from skiway.cli.stored_logins import LoginToken

        return LoginToken(self.location)

    @property
    def access_token(self) -> str | None:
        """The token for a call that begins now."""
        return self.renewed_token() if callable(self.renewed_token) else self.renewed_token

    @cached_property
    def lake(self) -> Metastore:
        """The client of the metastore."""
        return self.metastore(timeout_s=TIMEOUT_S)

    def metastore(self, *, timeout_s: float | None) -> Metastore:
        """Return a new client of the metastore with its own deadline."""
        prepare_grpc()
        from skiway.client import Metastore

        return Metastore(self.address, token=self.renewed_token, account=self.account, timeout_s=timeout_s)

    def airport(self, catalog: str) -> AirportClient:
        """Return an Airport client of a catalog."""
        prepare_grpc()
        from skiway.client import AirportClient

        if self.account not in (None, "", DEFAULT_ACCOUNT):
            raise InvalidArgument("SQL uses the account of the token: give --token, and leave out --account")
        return AirportClient(self.location, catalog, token=self.renewed_token, brief=True)

    def sql_session(self, catalog: str = "lake", engine: Engine | None = None) -> SqlSession:
        """Return a session for SQL on the lake."""
        from skiway.duckdb.session import Session

        return Session(self.airport, lambda: map(str, self.lake.catalogs()), catalog=catalog, engine=engine)

    def function(self, name: str, function: str, *arguments: object, **named: object) -> dict[str, Any]:
        """Call a function of the schema `skiway` with the full name of a table or view; return its only row."""
        (row,) = self.function_rows(name, function, *arguments, **named)
        return row

    def function_rows(self, name: str, function: str, *arguments: object, **named: object) -> list[dict[str, Any]]:
        """Call a function of the schema `skiway` with the full name of a table or view; return its rows."""
        from skiway.airport.wire.duckdb_sql import identifier
        from skiway.client.metastore.calls import segments
        from skiway.foundation.resources import schema_name

        catalog, *namespace, own_name = segments(name, resource="table")
        with self.airport(catalog) as lake:
            path = f"{identifier(schema_name(namespace))}.{identifier(own_name)}"
            return list(lake.call(f"skiway.{function}", path, *arguments, named=named).read_all().to_pylist())

    def name_of(self, kind: str, object_id: Any) -> str:
        """Return the full name of a catalog, namespace, table or view."""
        from skiway.client.metastore import dotted

        path = getattr(self.lake.directory, f"{kind}_path")(object_id)
        return "(deleted)" if path is None else dotted(path)

    def close(self) -> None:
        """Close the client of the metastore, if it was used."""
        if "lake" in self.__dict__:
            self.lake.close()


@dataclass(frozen=True)
class HomeCall(Printing):
    """One run of a command that works on the home of a server, and not through a server."""

    home: Path
    file: Path | None
    given: Sequence[str]
    output: Output

    @cached_property
    def settings(self) -> Settings:
        """The settings from `--set`, the environment, the settings file and the defaults."""
        return load_settings(self.home, self.file, self.given)

    @property
    def existing_home(self) -> Path:
        """The home, which must exist. The settings are checked first."""
        if self.settings and not self.home.is_dir():
            raise InvalidArgument(f"there is no home {self.home}: give the home of your server with --home")
        return self.home


def group(name: str, about: str | None) -> typer.Typer:
    """Return a new group of commands."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # importing rich takes longer than everything else in --help
        context_settings={"help_option_names": ["-h", "--help"]},
    )


Register = Callable[[Callable[..., None]], Callable[..., None]]


def command(app: typer.Typer, name: str, more_options: Sequence[inspect.Parameter] = ()) -> Register:
    """Register a function whose first parameter is a `Call` as a command.

    The command has the options of the function, then `more_options`, which it takes as keywords, then those that all commands share.
    """

    def run(function: Callable[..., None], **given: Any) -> None:
        server, token, account = (given.pop(option) for option in CONNECTION)
        run_command(function, Call(server, token, account, given.pop("output")), **given)

    return _registered(app, name, run, SHARED_OPTIONS, more_options)


def home_command(app: typer.Typer, name: str, *, has_output: bool = True) -> Register:
    """Register a function whose first parameter is a `HomeCall` as a command, with the options of such commands."""

    def run(function: Callable[..., None], home: Path, **given: Any) -> None:
        config, settings, output = given.pop("config"), given.pop("settings"), given.pop("output", Output.table)
        function(HomeCall(home.expanduser(), config, settings or [], output), **given)

    return _registered(app, name, run, HOME_OPTIONS | ({"output": SHARED_OPTIONS["output"]} if has_output else {}))


def _registered(
    app: typer.Typer,
    name: str,
    run: Callable[..., None],
    shared_options: Mapping[str, tuple[Any, Any]],
    more_options: Sequence[inspect.Parameter] = (),
) -> Register:
    """Return what registers a function as a command. `run` gets the function and the values of all options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def act(**given: Any) -> None:
            run(function, **given)

        act.__doc__ = function.__doc__
        _set_signature(act, function, shared_options, more_options)
        app.command(name)(act)
        return function

    return register


def run_command(function: Callable[..., None], call: Call, **given: Any) -> None:
    """Run the function of a command, with hints on how to fix its errors."""
    try:
        function(call, **given)
        sys.stdout.flush()
    except SkiwayError as error:
        raise _explain(call, error) from error
    finally:
        call.close()


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal before something is destroyed; the answer no ends the command."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


SHARED_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "output": (OutputOption, Output.table),
    "server": (Server, None),
    "token": (Token, None),
    "account": (Account, None),
}
HOME_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "home": (Home, HOME),
    "config": (Config, None),
    "settings": (Set, None),
}


def _set_signature(
    act: Callable[..., None],
    function: Callable[..., None],
    shared_options: Mapping[str, tuple[Any, Any]],
    more_options: Sequence[inspect.Parameter],
) -> None:
    """Give `act` the signature from which typer derives its options."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(function).parameters.values())[1:]
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared_options.items()
    ]
    parameters = [*own, *more_options, *shared]
    _complete_names(parameters)
    act.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    act.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _complete_names(parameters: Iterable[inspect.Parameter]) -> None:
    """Let shells complete the names of what the server has."""
    for each in parameters:
        for info in getattr(each.annotation, "__metadata__", ()):
            if isinstance(info, ParameterInfo) and (names := options.COMPLETIONS.get(info.metavar or "")):
                info.autocompletion = options.completer(names, _connected)


def _connected(ctx: Any) -> Metastore:
    """The client of a command line that is still being typed."""
    return Call.from_environment(ctx.params).metastore(timeout_s=options.COMPLETION_TIMEOUT_S)


def _address_in(home: Path) -> str | None:
    """The address in the ready file of the server in `home`, if there is one."""
    try:
        addresses = json.loads((home.expanduser() / READY_FILE).read_text())
        return str(addresses["rpc"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


# -- errors ------------------------------------------------------------------------------------------------------------


def _explain(call: Call, error: SkiwayError) -> SkiwayError:
    """Return the error with a hint on how to fix it."""
    if isinstance(error, Unavailable) and "cannot reach" in error.message:
        start = "start one with `skiway serve`, or name it with --server or SKIWAY_SERVER"
        return Unavailable(f"no server answers at {call.address}: {start}")
    if isinstance(error, Unauthorized):
        return _with_login(call, error)
    if hint := HINTS.get(error.key):
        return type(error)(f"{error.message}; {hint}", key=error.key)
    if isinstance(error, NotFound):
        return _with_suggestion(call.lake, error)
    return error


def _with_login(call: Call, error: Unauthorized) -> Unauthorized:
    """Return the error with how to get a token."""
    if error.key.startswith("login."):
        return error
    from skiway.cli.stored_logins import LoginToken

    if isinstance(call.renewed_token, LoginToken) and call.renewed_token.login is not None:
        return Unauthorized(f"the server rejects your login: {error.message}; run skiway login again", key=error.key)
    return Unauthorized(
        f"{error.message}; log in with skiway login, or give a token with --token or SKIWAY_TOKEN (create one with "
        "skiway tokens create)",
        key=error.key,
    )


def _with_suggestion(lake: Metastore, error: NotFound) -> NotFound:
    """Return the error with existing names that resemble the missing one."""
    candidates = CANDIDATES.get(error.key)
    if candidates is None:
        return error
    hint = ""
    with suppress(SkiwayError, KeyError):  # the first error is enough
        missing, names = candidates(lake, error.params)
        hint = suggestion(missing, map(str, islice(names, MAX_CANDIDATES)))
    if not hint:
        return error
    explained = NotFound(f"{error.message}; {hint}", key=error.key)
    explained.params = error.params
    return explained


Candidates = Callable[["Metastore", Mapping[str, str]], tuple[str, Iterable[object]]]

CANDIDATES: Final[Mapping[str, Candidates]] = {
    "catalog.by.name.missing": lambda lake, missing: (missing["catalog"], lake.catalogs()),
    "namespace.by.path.missing": lambda lake, missing: (
        f"{missing['catalog']}.{missing['path']}",
        lake.namespaces(missing["catalog"], recursive=True),
    ),
    "table.by.name.missing": lambda lake, missing: (
        f"{missing['catalog']}.{missing['path']}.{missing['name']}",
        lake.tables(f"{missing['catalog']}.{missing['path']}"),
    ),
    "connector": lambda lake, missing: (missing["id"], (connector.name for connector in lake.connectors())),
}
"""The missing name and the existing names, by the key of the error."""
