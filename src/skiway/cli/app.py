"""The commands and their options. The code of each command is imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import errno
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from skiway import __version__
from skiway.cli import options
from skiway.cli.options import HOME, Account, Config, Home, OutputOption, Server, Set, Token, prepare_grpc
from skiway.cli.output import Output, discard_output, prepare_terminal
from skiway.errors import SkiwayError

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of the disk to which the output is written."""
DEMO_HOME: Final = HOME / "demo"
CONTINUATION: Final = re.compile(r"\n[ \t]+")
"""An indented line in an error message of a library. Lines of our own messages are not indented, one per error."""


class LazyGroup(NamedTuple):
    """A group of commands that is imported at its first use; `target` is `module:attribute`."""

    target: str
    help: str


LAKE: Final = {
    "sql": LazyGroup("sql:app", "Run SQL on the lake with DuckDB."),
    "login": LazyGroup("login:login_app", "Log in to a server, so that commands need no token."),
    "logout": LazyGroup("login:logout_app", "Forget the login to a server."),
    "attach": LazyGroup("lake.catalogs:attach_app", "Print the statements that attach catalogs in DuckDB."),
    "search": LazyGroup("lake.catalogs:search_app", "Find tables by names, columns, comments and tags."),
    "accounts": LazyGroup("lake.access:accounts_app", "Manage accounts, which own catalogs."),
    "grants": LazyGroup("lake.access:grants_app", "Grant privileges on catalogs, namespaces and tables."),
    "policies": LazyGroup("lake.access:policies_app", "Restrict what callers see of rows and columns."),
    "rules": LazyGroup("lake.rules:app", "Define and check quality rules of tables."),
    "catalogs": LazyGroup("lake.catalogs:catalogs_app", "Manage catalogs, such as lake."),
    "namespaces": LazyGroup("lake.catalogs:namespaces_app", "Manage namespaces, such as lake.sales."),
    "tables": LazyGroup("lake.table_maintenance:app", "Show, describe, create, delete and maintain tables."),
    "views": LazyGroup("lake.catalogs:views_app", "Show, create and delete views."),
    "snapshots": LazyGroup("lake.snapshots:snapshots_app", "Show, roll back and delete snapshots of tables."),
    "pipelines": LazyGroup("lake.pipelines:app", "Derive tables from other tables by queries in files."),
    "connectors": LazyGroup("lake.connectors:app", "Mirror tables from other catalogs and folders."),
    "jobs": LazyGroup("lake.jobs:app", "List, watch and cancel background jobs."),
    "queries": LazyGroup("lake.activity:queries_app", "Manage queries, which are leases on snapshots."),
    "events": LazyGroup("lake.activity:events_app", "List and watch the changes of the account."),
    "webhooks": LazyGroup("lake.activity:webhooks_app", "Send events to other systems over HTTP."),
    "mcp": LazyGroup("server:mcp_app", "Serve the lake to assistants over MCP."),
    "setup": LazyGroup("lake.setup:app", "Export, plan and apply the configuration as a file."),
    "stats": LazyGroup("lake.snapshots:stats_app", "Show and compute statistics of tables and files."),
}


class Commands(TyperGroup):
    """The root group, which loads the commands of `LAKE` lazily."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        """Return all names, in the order of the help."""
        return [*self.commands, *(name for name in LAKE if name not in self.commands)]

    def get_command(self, ctx: Any, name: str) -> Any:  # noqa: ARG002 - the signature of click
        """Return the command called `name`, or None."""
        if name in LAKE and name not in self.commands:
            module, _, attribute = LAKE[name].target.partition(":")
            loaded = getattr(import_module(f"skiway.cli.{module}"), attribute)
            self.commands[name] = typer.main.get_command(loaded)
        return self.commands.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run. For an unknown name, load all commands, so that click can suggest one."""
        if self.get_command(ctx, args[0]) is None:
            for name in LAKE:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the help without loading any command."""
        width = max(map(len, self.list_commands(ctx)))
        limit = formatter.width - 6 - width
        lake = [(name, group.help) for name, group in LAKE.items()]
        own = [(name, command.get_short_help_str(limit)) for name, command in self.commands.items() if name not in LAKE]
        for title, rows in (("Lake commands", lake), ("Server commands", own)):
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows])


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
tokens = typer.Typer(
    help="Manage access tokens, for servers with auth.mode=token.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tokens, name="tokens")


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


Grpc = Annotated[str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Address of the gRPC server.")]
Http = Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="Address of the HTTP server.")]


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `skiway` itself."""


@app.command()
def serve(
    home: Home = HOME,
    config: Config = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON file with the server's addresses, which exists while it is ready.",
            show_default="ready.json in the home",
        ),
    ] = None,
    grpc: Grpc = None,
    http: Http = None,
    settings: Set = None,
) -> None:
    """Run the server until Ctrl-C or SIGTERM."""
    from skiway.cli import server

    addresses = {"grpc": grpc, "http": http}
    given = [f"server.{protocol}.address={address}" for protocol, address in addresses.items() if address is not None]
    server.serve(home.expanduser(), config, [*(settings or []), *given], ready_file=ready_file)


@app.command()
def worker(home: Home = HOME, config: Config = None, settings: Set = None) -> None:
    """Run background jobs until Ctrl-C or SIGTERM.

    A worker shares the stores of servers with reconciler.backend=remote: the home of a server on this machine, or stores
    on the network.
    """
    from skiway.cli import server

    server.work(home.expanduser(), config, settings or [])


@app.command()
def demo(
    home: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the demo lake.")] = DEMO_HOME,
    once: Annotated[bool, typer.Option("--once", help="Run three queries, print their results and exit.")] = False,
    grpc: Grpc = None,
    http: Http = None,
) -> None:
    """Run a small demo lake.

    It prints the statements to type into DuckDB. The first run creates the lake and profiles its tables with Spark.
    """
    from skiway.cli import server as demonstration

    demonstration.run_demo(home.expanduser(), once=once, grpc=grpc, http=http)


@app.command()
def gc(
    home: Home = HOME,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, but delete nothing.")] = False,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Delete unreachable data.

    A running server collects garbage by itself; this command sweeps the whole store once.
    """
    from skiway.cli import server

    server.collect_garbage(home.expanduser(), config, settings or [], dry_run=dry_run, output=output)


@app.command()
def check(
    home: Home = HOME,
    config: Config = None,
    files: Annotated[
        bool, typer.Option(help="Check that the files of managed tables exist, which lists the warehouse.")
    ] = True,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair the order of times in the history of managed tables.")
    ] = False,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Check the integrity of the stores.

    Every pointer must have its blob, every resource its names, and every managed table its files. Servers may run
    meanwhile. The exit code is 1 if there is a defect.
    """
    from skiway.cli import maintenance

    maintenance.check(home.expanduser(), config, settings or [], files=files, repair=repair, output=output)


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the backup.")],
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Back up the stores while servers run.

    The backup contains everything that was committed when the command began. It has the secrets, so protect it like the
    home. The files of the warehouse are listed, but not copied.
    """
    from skiway.cli import maintenance

    maintenance.back_up(home.expanduser(), config, settings or [], folder.expanduser(), output=output)


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a backup.")],
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Restore a backup into empty stores, and check them."""
    from skiway.cli import maintenance

    maintenance.restore(home.expanduser(), config, settings or [], folder.expanduser(), output=output)


@app.command()
def migrate(
    home: Home = HOME,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the steps, but change nothing.")] = False,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Bring the stores to the format of this version.

    Upgrade all servers and make a backup first: servers of older versions cannot use the stores any more. An interrupted
    migration continues when the command is run again.
    """
    from skiway.cli import maintenance

    maintenance.migrate(home.expanduser(), config, settings or [], dry_run=dry_run, output=output)


@app.command()
def doctor(
    home: Home = HOME,
    config: Config = None,
    server: Server = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Address of the HTTP server, such as http://127.0.0.1:8181.", show_default=False
        ),
    ] = None,
    token: Token = None,
    account: Account = None,
    start_spark: Annotated[bool, typer.Option("--start-spark", help="Start Spark, too.")] = False,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Check the installation, the home and its running server.

    Each check shows what it found and, if something is wrong, what to do. Nothing is changed. The exit code is 1 if a check
    failed.
    """
    from skiway.cli import doctor as diagnosis

    at = diagnosis.Target(server, http, token, account)
    diagnosis.run(home.expanduser(), config, settings or [], at, start_spark=start_spark, output=output)


@app.command("config")
def show_config(
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Show all settings and where they are set.

    Secrets are masked.
    """
    from skiway.cli import server

    server.show_settings(home.expanduser(), config, settings or [], output=output)


@app.command("completion")
def show_completion(
    shell: Annotated[options.Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands, options and names of tables in a shell.

    bash: eval "$(skiway completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit; fish: skiway
    completion fish > ~/.config/fish/completions/skiway.fish
    """
    typer.echo(options.completion_script(shell))


@tokens.command("new")
def new_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The owner's name, which appears in logs.")],
    account: Annotated[str, typer.Option(metavar="ID", help="Account; empty for a platform role.")],
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="A role; repeatable. Without one, the token can only read.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="Days until the token expires; never by default.")
    ] = None,
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Create a token and print it once.

    The tokens file stores only its hash. Running servers reload the file by themselves.
    """
    from skiway.cli import tokens as commands

    commands.create_token(
        home.expanduser(),
        config,
        settings or [],
        name=name,
        account=account,
        roles=role or [],
        days=days,
        output=output,
    )


@tokens.command("list")
def list_tokens(
    home: Home = HOME, config: Config = None, settings: Set = None, output: OutputOption = Output.table
) -> None:
    """List the tokens: owners, accounts, roles, expiry and last use.

    The last use is accurate to a minute.
    """
    from skiway.cli import tokens as commands

    commands.list_tokens(home.expanduser(), config, settings or [], output=output)


@tokens.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or id, as `skiway tokens list` shows it.")],
    every: Annotated[bool, typer.Option("--all", help="Revoke all tokens of this name.")] = False,
    home: Home = HOME,
    config: Config = None,
    settings: Set = None,
    output: OutputOption = Output.table,
) -> None:
    """Revoke a token. Running servers reject it from the next call on."""
    from skiway.cli import tokens as commands

    commands.revoke_token(home.expanduser(), config, settings or [], name=name, every=every, output=output)
