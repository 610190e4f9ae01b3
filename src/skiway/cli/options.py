"""Options that several commands share, and the settings they select."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from skiway.cli.output import Output

if TYPE_CHECKING:
    from skiway.config import Settings

__all__ = [
    "HOME",
    "Account",
    "Config",
    "Home",
    "OutputOption",
    "Server",
    "Set",
    "Token",
    "key_values",
    "load_settings",
    "prepare_grpc",
    "prepare_memory",
    "require_home",
]

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


def key_values(given: Sequence[str] | None, option: str, *, example: str = "owner=sales") -> dict[str, str]:
    """Parse the `KEY=VALUE` arguments of an option; if a key occurs twice, the last value wins."""
    found = {}
    for text in given or []:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE, such as {example}", param_hint=option)
        found[key.strip()] = value
    return found


def load_settings(home: Path, file: Path | None, given: Sequence[str]) -> Settings:
    """Load the settings from `--set`, the environment, the settings file and the defaults."""
    from skiway.config import load  # takes longer to import than most commands need

    return load(home, file, os.environ, key_values(given, "--set", example="gc.cas.enabled=false"))


def require_home(home: Path) -> None:
    """Raise if the home of a server does not exist."""
    from skiway.errors import InvalidArgument

    if not home.is_dir():
        raise InvalidArgument(f"there is no home {home}: give the home of your server with --home")


def prepare_grpc() -> None:
    """Set the environment variables that gRPC reads when it is imported.

    Its own log messages are disabled, since we report errors ourselves. So are its fork handlers, since Java is started
    with a fork.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


def prepare_memory() -> None:
    """Let Arrow use the allocator of the C library, before pyarrow is imported.

    Arrow's own allocator keeps freed memory for each thread: a server with many threads took 640 MiB instead of 450.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
