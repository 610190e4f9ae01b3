"""What a misspelled name was meant to be."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import typer

from skiway.cli.options import HOME, Account, Output, OutputOption, Server, Token, prepare_grpc
from skiway.errors import InvalidArgument, NotFound, SkiwayError, Unauthorized, Unavailable

if TYPE_CHECKING:
    from skiway.client import AirportClient, Metastore

__all__ = ["READY_FILE", "Call", "nearest", "noun", "verb", "with_nearest"]

LOOKED_AT: Final = 1000
SHOWN: Final = 3


def with_nearest(lake: Metastore, error: NotFound) -> NotFound:
    """The same error, with names that exist and look like the one that does not."""
    beside = BESIDE.get(error.key)
    if beside is None:
        return error
    asked, names = "", []
    with suppress(SkiwayError, KeyError):  # the first error says enough
        asked, found = beside(lake, error.params)
        names = nearest(asked, islice(found, LOOKED_AT))
    if not names:
        return error
    told = NotFound(f"{error.message}; there is {', '.join(names)}", key=error.key)
    told.params = error.params
    return told


def nearest(asked: str, names: Iterable[str]) -> list[str]:
    """The names that look like the one asked for, or else the first ones there are."""
    known = list(names)
    lower = {name.lower(): name for name in known}
    close = get_close_matches(asked.lower(), lower, n=SHOWN, cutoff=0.6)
    if close:
        return [lower[name] for name in close]
    return [*known[:SHOWN], "…"] if len(known) > SHOWN else known


Beside = Callable[["Metastore", Mapping[str, str]], tuple[str, Iterable[str]]]


def _catalogs(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    return params["catalog"], (str(each) for each in lake.catalogs())


def _namespaces(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    below = lake.namespaces(params["catalog"], recursive=True)
    return f"{params['catalog']}.{params['path']}", (str(each) for each in below)


def _tables(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    namespace = f"{params['catalog']}.{params['path']}"
    return f"{namespace}.{params['name']}", (str(each) for each in lake.tables(namespace))


def _connectors(lake: Metastore, params: Mapping[str, str]) -> tuple[str, Iterable[str]]:
    return params["id"], (each.name for each in lake.connectors())


BESIDE: Final[Mapping[str, Beside]] = {
    "catalog.by.name.missing": _catalogs,
    "namespace.by.path.missing": _namespaces,
    "table.by.name.missing": _tables,
    "connector": _connectors,
}


# --------------------
# A command that asks a server: where that is, who asks, and how the answer is written.


DEFAULT_SERVER: Final = "127.0.0.1:50051"
DEFAULT_ACCOUNT: Final = "default"
READY_FILE: Final = "ready.json"
TIMEOUT_S: Final = 60.0
FIXES: Final = {
    "catalog.not_empty": "--cascade deletes all that is in it",
    "namespace.not_empty": "--cascade deletes all that is in it",
    "connector.not.active": "skiway connectors update … --resume does that",
}
"""What the command line has for errors of these keys."""


@dataclass(frozen=True)
class Call:
    """One command on its way: the clients it asks, opened at first use, and the output it writes to."""

    server: str | None = None
    token: str | None = None
    account: str | None = None
    output: Output = Output.table

    @cached_property
    def address(self) -> str:
        """Where the server is: as told, as the home's running server says, or where servers are by default."""
        return self.server or _announced(Path(os.environ.get("SKIWAY_HOME") or HOME)) or DEFAULT_SERVER

    @cached_property
    def lake(self) -> Metastore:
        """The metastore."""
        return self.metastore(timeout_s=TIMEOUT_S)

    def metastore(self, *, timeout_s: float | None) -> Metastore:
        """A client of the metastore with a deadline of its own."""
        prepare_grpc()
        from skiway.client import Metastore

        return Metastore(self.address, token=self.token, account=self.account, timeout_s=timeout_s)

    def airport(self, catalog: str) -> AirportClient:
        """A catalog, attached as DuckDB attaches it."""
        prepare_grpc()
        from skiway.client import AirportClient

        if self.account not in (None, "", DEFAULT_ACCOUNT):
            raise InvalidArgument("SQL runs in the account of the token: give --token, and leave out --account")
        location = self.address if "://" in self.address else f"grpc://{self.address}"
        return AirportClient(location, catalog, token=self.token)

    def close(self) -> None:
        """Hang up, if anybody was called."""
        if "lake" in self.__dict__:
            self.lake.close()

    @property
    def as_json(self) -> bool:
        """Whether a program reads the answer."""
        return self.output is Output.json

    def rows(self, records: Iterable[object], columns: Sequence[str], *, nothing: str) -> None:
        """Write records: these columns for people, all there is for programs; a sentence where there are none."""
        from skiway.cli import rendering

        if self.as_json:
            rendering.write_json(list(records))
        else:
            rendering.write_rows(list(records), columns, nothing=nothing)

    def record(self, record: object) -> None:
        """Write one record, a line for each fact."""
        from skiway.cli import rendering

        if self.as_json:
            rendering.write_json(record)
        else:
            rendering.write_facts(record)

    def done(self, sentence: str, record: object) -> None:
        """Say what was done; a program gets what came of it."""
        from skiway.cli import rendering

        if self.as_json:
            rendering.write_json(record)
        else:
            typer.echo(sentence)


def noun(name: str, about: str | None) -> typer.Typer:
    """The group of commands about one kind of things."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help: the other kind takes longer to load than everything else
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def verb(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first argument is the `Call`; the options of a call come after its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(server: str | None, token: str | None, account: str | None, output: Output, **given: Any) -> None:
            call = Call(server, token, account, output)
            try:
                function(call, **given)
            except SkiwayError as error:
                raise _with_fix(call, error) from error
            finally:
                call.close()

        _show_as(run, function)
        app.command(name)(run)
        return function

    return register


COMMON: Final = {"output": (OutputOption, Output.table), "server": (Server, None), "token": (Token, None)} | {
    "account": (Account, None)
}


def _show_as(run: Callable[..., None], function: Callable[..., None]) -> None:
    """Let typer see the options of `function` but its call, and then those that all calls have."""
    hints = get_type_hints(function, include_extras=True)
    own = [each.replace(annotation=hints[each.name]) for each in list(inspect.signature(function).parameters.values())]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in COMMON.items()
    ]
    shown = [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own[1:]), *shared]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    del run.__wrapped__  # type: ignore[attr-defined]


def _with_fix(call: Call, error: SkiwayError) -> SkiwayError:
    """The error, with what to do about it in its sentence."""
    if isinstance(error, Unavailable) and "cannot reach" in error.message:
        start = "start one with `skiway serve`, or name it with --server or SKIWAY_SERVER"
        return Unavailable(f"no server answers at {call.address}: {start}")
    if isinstance(error, Unauthorized):
        return Unauthorized(f"{error.message}; give a token with --token or SKIWAY_TOKEN (skiway tokens new makes one)")
    if fix := FIXES.get(error.key):
        return type(error)(f"{error.message}; {fix}", key=error.key)
    if isinstance(error, NotFound):
        # dropped import

        return with_nearest(call.lake, error)
    return error


def _announced(home: Path) -> str | None:
    """What the ready file of a home's server says, if there is one."""
    try:
        told = json.loads((home.expanduser() / READY_FILE).read_text())
        return str(told["rpc"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
