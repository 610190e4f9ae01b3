"""Options that several commands share, and the settings they select."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from skiway.config import Settings, load

__all__ = [
    "HOME",
    "Account",
    "Config",
    "Home",
    "Output",
    "OutputOption",
    "Server",
    "Set",
    "Token",
    "key_values",
    "load_settings",
    "prepare_grpc",
]

HOME: Final = Path("~/.skiway")


class Output(StrEnum):
    """The format of a result."""

    table = "table"
    json = "json"


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
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table, or one JSON document.")]
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
    return load(home, file, os.environ, key_values(given, "--set", example="gc.cas.enabled=false"))


def prepare_grpc() -> None:
    """Set the environment variables that gRPC reads when it is imported.

    Its own log messages are disabled, since we report errors ourselves. So are its fork handlers, since Java is started
    with a fork.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
