"""The commands and their options. What a command does is in a module of its own, imported when it runs."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from skiway import __version__
from skiway.errors import SkiwayError

__all__ = ["Output", "app", "main"]

HOME: Final = Path("~/.skiway")
INDENTED: Final = re.compile(r"\n[ \t]+")
"""What a library adds below the first line of its message; lines of our own are one mistake each."""


class Output(StrEnum):
    """How a listing is written."""

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

app = typer.Typer(
    name="skiway",
    help="A lakehouse catalog service that DuckDB lands on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the other kind takes longer to load than everything else
    context_settings={"help_option_names": ["-h", "--help"]},
)
tokens = typer.Typer(
    help="Tokens that callers authenticate with, where auth.mode is token.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tokens, name="tokens")


def main() -> None:
    """Run the command line. An error that is told on purpose is one sentence and exit code 1; wrong usage is 2."""
    try:
        app()
    except SkiwayError as error:
        sys.stderr.write(f"skiway: {INDENTED.sub(' ', error.message)}\n")
        raise SystemExit(1) from None


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"skiway {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What all commands share."""


@app.command()
def serve(
    home: Home = HOME,
    config: Config = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File that holds the addresses as JSON while the server is ready."),
    ] = None,
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the gRPC door listens.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the HTTP door listens.")] = None,
    settings: Set = None,
) -> None:
    """Run the server until it is told to stop, by Ctrl-C or SIGTERM."""
    from skiway.cli import serving

    doors = {"grpc": grpc, "http": http}
    given = [*(settings or []), *(f"server.{door}.address={at}" for door, at in doors.items() if at is not None)]
    serving.serve(home.expanduser(), config, given, ready_file=ready_file)


@app.command()
def gc(
    home: Home = HOME,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing, list what would be.")] = False,
    settings: Set = None,
) -> None:
    """Remove what nothing leads to any more. A running server does it by itself, this goes once through the whole store."""
    from skiway.cli import collecting

    collecting.collect(home.expanduser(), config, settings or [], dry_run=dry_run)


@app.command("config")
def show_config(
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: Annotated[Output, typer.Option(help="How to show them.")] = Output.table,
) -> None:
    """Show every setting in force and where it was set. Secrets are hidden."""
    from skiway.cli import configured

    configured.show(home.expanduser(), config, settings or [], as_json=output is Output.json)


@tokens.command("new")
def new_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is; calls are logged under this name.")],
    account: Annotated[
        str, typer.Option(metavar="ID", help="Id of the account; empty for the platform's administrator.")
    ],
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="A role; repeatable. Without any, the token may read.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="For how many days it is valid; for ever unless given.")
    ] = None,
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Make a token and print it, once. Only its hash is kept, in the tokens file; servers read that again by themselves."""
    from skiway.cli import token_making

    token_making.new(home.expanduser(), config, settings or [], name=name, account=account, roles=role or [], days=days)
