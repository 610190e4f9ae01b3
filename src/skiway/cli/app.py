"""The commands and their options. What a command does is in a module of its own, imported when it runs."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from skiway import __version__
from skiway.cli.options import HOME, Config, Home, Output, OutputOption, Set
from skiway.errors import SkiwayError

__all__ = ["app", "main"]

DEMO_HOME: Final = HOME / "demo"
INDENTED: Final = re.compile(r"\n[ \t]+")
"""What a library adds below the first line of its message; lines of our own are one mistake each."""
LAKE: Final = {
    "sql": "Run SQL over the lake, by DuckDB.",
    "catalogs": "Catalogs, at the top: lake.",
    "namespaces": "Namespaces in catalogs: lake.sales.",
    "tables": "Tables, and what is known of their columns.",
    "snapshots": "The states of a table that can be read.",
    "connectors": "Sources whose tables are mirrored: create, sync.",
    "jobs": "The work on connectors: list, watch, cancel.",
    "queries": "Leases on what is read.",
    "stats": "Statistics of tables and files.",
}


class Commands(TyperGroup):
    """The commands, of which those about the lake are loaded when one of them is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as it is called
        """All names, in the order of the help."""
        return [*self.commands, *(name for name in LAKE if name not in self.commands)]

    def get_command(self, ctx: Any, name: str) -> Any:  # noqa: ARG002 - as it is called
        """The command of a name, or None."""
        if name in LAKE and name not in self.commands:
            loaded = import_module(f"skiway.cli.{name}").app
            self.commands[name] = typer.main.get_command(loaded)
        return self.commands.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; for one that is misspelled all are loaded, as one of them may be meant."""
        if self.get_command(ctx, args[0]) is None:
            for name in LAKE:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The help, for which nothing has to be loaded."""
        width = max(map(len, self.list_commands(ctx)))
        limit = formatter.width - 6 - width
        own = [(name, command.get_short_help_str(limit)) for name, command in self.commands.items() if name not in LAKE]
        for title, rows in (("The lake", list(LAKE.items())), ("The server", own)):
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", said) for name, said in rows])


app = typer.Typer(
    name="skiway",
    cls=Commands,
    help="A lakehouse catalog service that DuckDB lands on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the other kind takes longer to load than everything else
    context_settings={"help_option_names": ["-h", "--help"]},
)
tokens = typer.Typer(
    help="Tokens that callers show, where auth.mode is token.", no_args_is_help=True, rich_markup_mode=None
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
        typer.Option(
            metavar="FILE",
            help="File that holds the addresses as JSON while the server is ready; unless given, ready.json in the home.",
        ),
    ] = None,
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the gRPC door listens.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the HTTP door listens.")] = None,
    settings: Set = None,
) -> None:
    """Run the server until it is told to stop, by Ctrl-C or SIGTERM."""
    from skiway.cli import processes

    doors = {"grpc": grpc, "http": http}
    given = [*(settings or []), *(f"server.{door}.address={at}" for door, at in doors.items() if at is not None)]
    processes.serve(home.expanduser(), config, given, ready_file=ready_file)


@app.command()
def worker(home: Home = HOME, config: Config = None, settings: Set = None) -> None:
    """Work on jobs, without a server, until it is told to stop, by Ctrl-C or SIGTERM.

    Its store is that of servers whose reconciler.backend is remote: a home on the same machine, or a shared one.
    """
    from skiway.cli import processes

    processes.work(home.expanduser(), config, settings or [])


@app.command()
def demo(
    home: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo lake is kept.")] = DEMO_HOME,
    once: Annotated[bool, typer.Option("--once", help="Run three queries, print the answers and end.")] = False,
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the gRPC door listens.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the HTTP door listens.")] = None,
) -> None:
    """Serve a small lake, and print what to type into DuckDB. The first start fills it and profiles it on Spark."""
    from skiway.cli import demo as demonstration

    demonstration.run(home.expanduser(), once=once, grpc=grpc, http=http)


@app.command()
def gc(
    home: Home = HOME,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing, list what would be.")] = False,
    settings: Set = None,
) -> None:
    """Remove what nothing leads to any more. A running server does it by itself, this goes once through the whole store."""
    from skiway.cli import processes

    processes.collect(home.expanduser(), config, settings or [], dry_run=dry_run)


@app.command("config")
def show_config(
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Show every setting in force and where it was set. Secrets are hidden."""
    from skiway.cli import processes

    processes.show(home.expanduser(), config, settings or [], as_json=output is Output.json)


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
    from skiway.cli import processes

    processes.new(home.expanduser(), config, settings or [], name=name, account=account, roles=role or [], days=days)
