"""The commands. The code of each command is imported when it is used, so that `--help` is fast."""

from __future__ import annotations

import errno
import re
import sys
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from skiway import __version__
from skiway.cli import options
from skiway.cli.options import prepare_grpc
from skiway.cli.output import discard_output, prepare_terminal
from skiway.errors import SkiwayError
from skiway.foundation.resources import PLAIN

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of the disk to which the output is written."""
CONTINUATION: Final = re.compile(r"\n[ \t]+")
"""An indented line in an error message of a library. Lines of our own messages are not indented, one per error."""


class Lazy(NamedTuple):
    """A command or a group of commands, which is imported at its first use: that name in `app`, or `app` itself."""

    module: str
    help: str
    app: str = "app"


LAKE: Final = {
    "sql": Lazy("sql", "Run SQL on the lake with DuckDB."),
    "login": Lazy("login", "Log in to a server, so that commands need no token."),
    "logout": Lazy("login", "Forget the login to a server."),
    "attach": Lazy("lake.catalogs", "Print the statements that attach catalogs in DuckDB."),
    "search": Lazy("lake.catalogs", "Find tables by names, columns, comments and tags."),
    "accounts": Lazy("lake.access", "Manage accounts, which own catalogs.", "accounts_app"),
    "grants": Lazy("lake.access", "Grant privileges on catalogs, namespaces and tables.", "grants_app"),
    "policies": Lazy("lake.access", "Restrict what callers see of rows and columns.", "policies_app"),
    "rules": Lazy("lake.rules", "Define and check quality rules of tables."),
    "catalogs": Lazy("lake.catalogs", "Manage catalogs, such as lake.", "catalogs_app"),
    "namespaces": Lazy("lake.catalogs", "Manage namespaces, such as lake.sales.", "namespaces_app"),
    "branches": Lazy("lake.catalogs", "Try changes on a branch, compare and merge them.", "branches_app"),
    "tables": Lazy("lake.table_maintenance", "Show, describe, create, delete and maintain tables."),
    "views": Lazy("lake.catalogs", "Show, create and delete views.", "views_app"),
    "snapshots": Lazy("lake.snapshots", "Show, roll back and delete snapshots of tables.", "snapshots_app"),
    "pipelines": Lazy("lake.pipelines", "Derive tables from other tables by queries in files."),
    "connectors": Lazy("lake.connectors", "Mirror tables from other catalogs and folders."),
    "jobs": Lazy("lake.jobs", "List, watch and cancel background jobs."),
    "queries": Lazy("lake.activity", "Manage queries, which are leases on snapshots.", "queries_app"),
    "events": Lazy("lake.activity", "List and watch the changes of the account.", "events_app"),
    "webhooks": Lazy("lake.activity", "Send events to other systems over HTTP.", "webhooks_app"),
    **{resource.plural: Lazy("lake.resources", resource.about) for resource in PLAIN},
    "mcp": Lazy("server", "Serve the lake to assistants over MCP."),
    "setup": Lazy("lake.setup", "Export, plan and apply the configuration as a file."),
    "stats": Lazy("lake.snapshots", "Show and compute statistics of tables and files.", "stats_app"),
}
SERVER: Final = {
    "serve": Lazy("server", "Run the server until Ctrl-C or SIGTERM."),
    "worker": Lazy("server", "Run background jobs until Ctrl-C or SIGTERM."),
    "demo": Lazy("server", "Run a small demo lake."),
    "gc": Lazy("server", "Delete unreachable data."),
    "check": Lazy("maintenance", "Check the integrity of the stores."),
    "backup": Lazy("maintenance", "Back up the stores while servers run."),
    "restore": Lazy("maintenance", "Restore a backup into empty stores, and check them."),
    "migrate": Lazy("maintenance", "Bring the stores to the format of this version."),
    "doctor": Lazy("doctor", "Check the installation, the home and its running server."),
    "explain": Lazy("doctor", "Explain a code of an error, such as MC_CONFLICT."),
    "config": Lazy("server", "Show all settings and where they are set."),
    "completion": Lazy("app", "Print the script that completes commands, options and names..."),
    "tokens": Lazy("tokens", "Manage access tokens, for servers with auth.mode=token."),
}
COMMANDS: Final = {**LAKE, **SERVER}


_WRONG_CHOICE: Final = re.compile(r"(?:Value error, )?'(?P<given>.*)' is not one of (?P<choices>'.*')\.")


class Commands(TyperGroup):
    """The root group, which imports its commands lazily."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        """Return all names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:  # noqa: ARG002 - the signature of click
        """Return the command called `name`, or None."""
        if name in COMMANDS and name not in self.commands:
            lazy = COMMANDS[name]
            loaded: Any = typer.main.get_command(getattr(import_module(f"skiway.cli.{lazy.module}"), lazy.app))
            self.commands[name] = getattr(loaded, "commands", {}).get(name, loaded)
        return self.commands.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run. For an unknown name, load all commands, so that click can suggest one."""
        if self.get_command(ctx, args[0]) is None:
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. If the value of an option is similar to one of its choices, the error suggests that."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if wrong := _WRONG_CHOICE.fullmatch(error.message):
                from skiway.foundation.causes import suggestion

                choices = wrong["choices"].replace("'", "")
                advice = suggestion(wrong["given"], choices.split(", "))
                found = f"{wrong['given']!r} is not one of {choices}"
                error.message = f"{found}; {advice}" if advice.startswith("did you mean") else f"{found}."
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature of click
        """Write the help without loading any command."""
        width = max(map(len, COMMANDS))
        for title, commands in (("Lake commands", LAKE), ("Server commands", SERVER)):
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", lazy.help) for name, lazy in commands.items()])


app = typer.Typer(
    name="skiway",
    cls=Commands,
    help="Skiway, a lakehouse catalog service for DuckDB.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich takes longer than everything else in --help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line. A `SkiwayError` is printed as one sentence, with exit code 1; wrong usage exits with 2."""
    prepare_grpc()  # before any command imports gRPC, which reads its environment then
    options.prepare_completion()
    prepare_terminal()
    try:
        match sys.argv[1:]:
            case ["sql", text] if not text.startswith("-"):
                from skiway.cli.sql import run_statements

                run_statements(text)
            case _:
                app()
        sys.stdout.flush()
    except SkiwayError as error:
        sys.stderr.write(f"skiway: {CONTINUATION.sub(' ', str(error))}\n")
        raise SystemExit(1) from None
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        discard_output()  # the reader of the output, such as `head`, has closed it
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        if error.errno not in FULL:
            raise
        discard_output()
        sys.stderr.write(f"skiway: the output cannot be written: {error.strerror}\n")
        raise SystemExit(1) from None


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"skiway {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `skiway` itself."""


@app.command("completion")
def show_completion(
    shell: Annotated[options.Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands, options and names of tables in a shell.

    bash: eval "$(skiway completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit; fish: skiway
    completion fish > ~/.config/fish/completions/skiway.fish
    """
    typer.echo(options.completion_script(shell))
