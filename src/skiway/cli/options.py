"""Options that several commands share, the settings they select, and completion in shells.

The completion script asks `skiway` itself for the words that fit, with the line so far in environment variables. Completion
never fails and never asks questions: without a server, or without access, there are no names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.output import Output
from skiway.foundation.clock import DURATION_SYNTAX, parse_duration
from skiway.foundation.resources import RESOURCES

if TYPE_CHECKING:
    from skiway.client import Metastore
    from skiway.config import Settings

HOME: Final = Path("~/.skiway")


Home = Annotated[
    Path,
    typer.Option(
        metavar="DIR", envvar="SKIWAY_HOME", help="Directory of the embedded stores, the settings file and secrets."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file.", show_default="skiway.toml in the home"),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as auth.mode=token; repeatable.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Format of the result.")]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="SKIWAY_SERVER",
        help="Server address.",
        show_default="the server in $SKIWAY_HOME, or 127.0.0.1:50051",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", envvar="SKIWAY_TOKEN", help="Access token, if the server requires one."),
]
Account = Annotated[
    str | None,
    typer.Option(metavar="ID", envvar="SKIWAY_ACCOUNT", help="Account, if the server requires no token."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="Description for users.")]
Parent = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="Namespace or catalog to list; all catalogs by default.")
]
AtSnapshot = Annotated[
    int | None, typer.Option("--at", metavar="SNAPSHOT", help="Snapshot id; the current snapshot by default.")
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]


def key_values(given: Sequence[str] | None, option: str, *, example: str = "owner=sales") -> dict[str, str]:
    """Parse the `KEY=VALUE` arguments of an option; if a key occurs twice, the last value wins."""
    found = {}
    for text in given or []:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE, such as {example}", param_hint=option)
        found[key.strip()] = value
    return found


def duration(text: str, option: str, *, otherwise: str = "") -> timedelta:
    """Parse the duration of an option, such as 30s, 10m, 1h or 7d. `otherwise` says what else the option takes."""
    try:
        return parse_duration(text)
    except ValueError:
        message = f"{text!r} is not {DURATION_SYNTAX}{otherwise}"
        raise typer.BadParameter(message, param_hint=option) from None


def load_settings(home: Path, file: Path | None, given: Sequence[str]) -> Settings:
    """Load the settings from `--set`, the environment, the settings file and the defaults."""
    from skiway.config import load  # takes longer to import than most commands need

    return load(home, file, os.environ, key_values(given, "--set", example="gc.cas.enabled=false"))


def prepare_grpc() -> None:
    """Set the environment variables that gRPC reads when it is imported.

    Its own log messages are disabled, since we report errors ourselves. So are its fork handlers, since Java is started
    with a fork.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


def prepare_memory() -> None:
    """Let Arrow use the allocator of the C library, before pyarrow is imported, with one arena per core.

    Arrow's own allocator keeps freed memory for each thread: a server with many threads took 640 MiB instead of 450. That of the C
    library does so for each of its arenas, of which there would be eight per core.
    """
    import ctypes  # only servers need it

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(AttributeError, TypeError):  # other libraries and systems have no arenas
        ctypes.CDLL(None).mallopt(_ARENAS, os.cpu_count() or 1)


_ARENAS: Final = -8
"""`M_ARENA_MAX` in C."""


COMPLETION_REQUEST: Final = "_SKIWAY_COMPLETE"
"""The environment variable with which a script asks for words."""
COMPLETION_TIMEOUT_S: Final = 3.0
MAX_NAMES: Final = 500


Shell = StrEnum("Shell", ["bash", "zsh", "fish"])


def completion_script(shell: Shell) -> str:
    """The script that switches completion on in a shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    found: str = get_completion_script(prog_name="skiway", complete_var=COMPLETION_REQUEST, shell=shell.value)
    return found


def prepare_completion() -> None:
    """Let the command line answer requests for words, if this is one."""
    if COMPLETION_REQUEST in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


Names = Callable[["Metastore", str], Iterable[str]]


def completer(names: Names, connect: Callable[[Any], Metastore]) -> Callable[[Any, str], list[str]]:
    """A completion with names that the server knows; none if it cannot be asked. `connect` gets the context of click."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        try:
            with connect(ctx) as lake:
                found = (name for name in names(lake, incomplete) if name.startswith(incomplete))
                return list(islice(found, MAX_NAMES))
        except Exception:  # noqa: BLE001 - an error would end up in the line that the user types
            return []

    return complete


def _all(plural: str) -> Names:
    return lambda lake, _: (each.name for each in getattr(lake, plural)())


def _namespaces(lake: Metastore, start: str) -> Iterator[str]:
    """The namespaces that begin with the typed text, and those that contain the typed name."""
    catalog, dot, _ = start.partition(".")
    for name in _all("catalogs")(lake, start):
        if name == catalog if dot else name.startswith(catalog):
            names = (str(each) for each in lake.namespaces(name, recursive=True))
            yield from (each for each in names if each.startswith(start) or start.startswith(f"{each}."))


def _below(plural: str) -> Names:
    """The tables or views of the namespaces that fit."""
    return lambda lake, start: (
        f"{namespace}.{each.name}"
        for namespace in _namespaces(lake, start)
        for each in getattr(lake, plural)(namespace)
    )


def _each(*kinds: Names) -> Names:
    return lambda lake, start: (name for names in kinds for name in names(lake, start))


COMPLETIONS: Final[Mapping[str, Names]] = {
    "CATALOG": _all("catalogs"),
    "[CATALOG]...": _all("catalogs"),
    "NAMESPACE": _each(_all("catalogs"), _namespaces),
    "TABLE": _below("tables"),
    "VIEW": _below("views"),
    "OBJECT": _each(_all("catalogs"), _namespaces, _below("tables")),
    "CONNECTOR": _all("connectors"),
    **{resource.name.upper(): _all(resource.plural) for resource in RESOURCES},
    "JOB": lambda lake, _: (each.id for each in islice(lake.jobs(), MAX_NAMES)),
}
"""The names that complete an argument, by what it is called in the help."""
