"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
    "flags",
    "pairs",
    "prepare_grpc",
    "settings_of",
]

HOME: Final = Path("~/.skiway")


class Output(StrEnum):
    """How an answer is written."""

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
    typer.Option(
        "--config", metavar="FILE", help="Settings file; unless given, skiway.toml in the home, if it is there."
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as auth.mode=token; repeatable.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people, or one JSON document for programs.")]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="SKIWAY_SERVER",
        help="The server to ask; unless given, the one of $SKIWAY_HOME, or 127.0.0.1:50051.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", envvar="SKIWAY_TOKEN", help="Who asks, where the server wants to know."),
]
Account = Annotated[
    str | None,
    typer.Option(metavar="ID", envvar="SKIWAY_ACCOUNT", help="The account, where the server asks for no token."),
]


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` as pairs; the last one wins."""
    found = {}
    for text in given or []:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(f"{text!r} is no KEY=VALUE: write it like owner=sales", param_hint=option)
        found[key.strip()] = value
    return found


# --------------------
# The settings that a command was started with.


def settings_of(home: Path, file: Path | None, given: Sequence[str]) -> Settings:
    """From `--set` and its like, the environment, the file and defaults."""
    return load(home, file, os.environ, flags(given))


def flags(given: Sequence[str]) -> Mapping[str, str]:
    """`KEY=VALUE` as pairs; the last one wins."""
    pairs = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(
                f"{text!r} is no KEY=VALUE: write it like gc.cas.enabled=false", param_hint="--set"
            )
        pairs[key.strip()] = value
    return pairs


# --------------------
# What gRPC reads from the environment when it is loaded, so it has to be there before.


def prepare_grpc() -> None:
    """Let it write nothing, as what fails is told by us; and let it alone a fork, by which Java is started."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
