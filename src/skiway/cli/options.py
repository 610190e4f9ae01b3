"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = ["HOME", "Account", "Config", "Home", "Output", "OutputOption", "Server", "Set", "Token", "pairs"]

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
