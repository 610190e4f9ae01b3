"""Commands that run or administer a server: `serve`, `worker`, `demo`, `mcp`, `gc` and `config`.

The modules of the server are imported by the commands that need them, after `prepare_grpc`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from skiway import __version__
from skiway.cli.command import READY_FILE, Call, HomeCall, command, group, home_command, progress
from skiway.cli.options import HOME, key_values, load_settings, prepare_grpc, prepare_memory
from skiway.cli.output import counted
from skiway.errors import InvalidArgument, SkiwayError

if TYPE_CHECKING:
    from rich.text import Text

    from skiway.config import Settings
    from skiway.demo.home import DemoHome
    from skiway.demo.output import Poster
    from skiway.runtime.process import Process

AUTH = {
    "dev": "dev: every caller can do everything",
    "token": "token; create one with: skiway tokens create NAME --account default --role administrator",
    "oidc": "tokens of an identity provider",
}
UNFOLDED = 10_000


app = group("server", None)

Grpc = Annotated[str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Address of the gRPC server.")]
Http = Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="Address of the HTTP server.")]


@home_command(app, "serve", has_output=False)
def serve(
    call: HomeCall,
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
) -> None:
    """Run the server until Ctrl-C or SIGTERM."""
    addresses = {"grpc": grpc, "http": http}
    given = [f"server.{protocol}.address={address}" for protocol, address in addresses.items() if address is not None]
    home, settings = call.home, load_settings(call.home, call.file, [*call.given, *given])
    prepare_memory()
    gc.disable()  # until the server is ready: importing its modules takes a tenth less time
    from rich.console import Console

    from skiway.runtime import process
    from skiway.runtime.lifecycle import favor_short_calls, remove_stale

    ready_file = ready_file or home / READY_FILE
    remove_stale(ready_file)
    console = Console(file=sys.stderr)

    def greet(addresses: Mapping[str, str]) -> None:
        favor_short_calls()
        if console.is_terminal:
            console.print(_banner(settings, home, addresses), soft_wrap=True)

    try:
        process.serve(settings, home, ready_file=ready_file, on_ready=greet)
    finally:
        gc.enable()


def _banner(settings: Settings, home: Path, addresses: Mapping[str, str]) -> Text:
    """The addresses of a server, and how to connect to it."""
    from rich.text import Text

    from skiway.airport.wire.duckdb_sql import attach_statement

    facts = {
        **addresses,
        "home": str(home),
        "auth": AUTH[settings.auth.mode],
        "duckdb": attach_statement("lake", addresses["airport"]),
        "python": f'from skiway.client import Metastore; Metastore("{addresses["rpc"]}")',
        "stop": "Ctrl-C",
    }
    lines = [(f"\n  {name:<8}{fact}", "") for name, fact in facts.items()]
    return Text.assemble(("skiway", "bold"), f" {__version__}", *lines)


# -- worker ------------------------------------------------------------------------------------------------------------


@home_command(app, "worker", has_output=False)
def work(call: HomeCall) -> None:
    """Run background jobs until Ctrl-C or SIGTERM.

    A worker shares the stores of servers with reconciler.backend=remote: the home of a server on this machine, or stores
    on the network.
    """
    settings = call.settings
    prepare_memory()
    home = call.existing_home
    _check_shared(settings, home)
    from rich.console import Console

    from skiway.runtime import workers

    console = Console(file=sys.stderr)

    def greet() -> None:
        if console.is_terminal:
            console.print("[bold]skiway worker[/bold] is waiting for jobs; stop it with Ctrl-C", highlight=False)

    workers.work(settings, home, on_ready=greet)


def _check_shared(settings: Settings, home: Path) -> None:
    """Reject stores in memory, which other processes cannot share."""
    from skiway.runtime.stores import stores_in_memory

    for name in stores_in_memory(settings, home):
        raise InvalidArgument(
            f"a worker must share its stores with a server, but {name} is in memory: give the home and settings of "
            "your server with --home, --config and --set",
            key="worker.store.memory",
        )


# -- gc ----------------------------------------------------------------------------------------------------------------


@home_command(app, "gc")
def collect_garbage(
    call: HomeCall,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, but delete nothing.")] = False,
) -> None:
    """Delete unreachable data.

    A running server collects garbage by itself; this command sweeps the whole store once.
    """
    from skiway.runtime.gc.sweeps import KINDS, once_round
    from skiway.runtime.lake import warehouse_of
    from skiway.runtime.stores import secrets_of, stores_of

    settings, home = call.settings, call.existing_home
    deleted, problems = Counter[str](), 0
    removed: list[dict[str, str]] = []
    warehouse = warehouse_of(settings) if settings.gc.warehouse.enabled else None
    with stores_of(settings, home) as stores, progress("collecting garbage") as bar:
        for page in once_round(settings, stores, secrets_of(settings), dry_run=dry_run, warehouse=warehouse):
            result, noun = page.result, page.kind.noun
            records = [{"kind": noun, "name": name} for name in result.removed]
            records += ({"kind": "file", "name": name} for name in result.files)
            deleted[noun] += len(result.removed) + result.unnamed
            deleted["file"] += len(result.files)
            problems += len(result.damaged) + len(result.failed) + (page.error is not None)
            if records or result.damaged or result.failed or page.error:
                bar.end()
            if call.is_for_people:
                for record in records:
                    typer.echo(f"{record['kind']}  {record['name']}")
            else:
                removed += records
            for name in result.damaged:
                typer.echo(f"content is missing: {name}", err=True)
            for text in result.failed:
                typer.echo(f"the sweep {page.kind.name} continued without {text}", err=True)
            if page.error is not None:
                typer.echo(f"the sweep {page.kind.name} failed: {_reason(page.error)}", err=True)
    call.print_for_programs(removed, ["kind", "name"])
    if not settings.gc.warehouse.enabled:
        skipped = ", ".join(kind.name for kind in KINDS if kind.needs_warehouse)
        typer.echo(f"skipped, because gc.warehouse.enabled is false: {skipped}", err=True)
    *most, last = (counted(deleted[noun], noun) for noun in dict.fromkeys(kind.noun for kind in KINDS if kind.noun))
    typer.echo(f"{'would delete' if dry_run else 'deleted'} {', '.join(most)} and {last}", err=True)
    if problems:
        raise typer.Exit(1)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SkiwayError) else f"{type(error).__name__}: {error}"


# -- config ------------------------------------------------------------------------------------------------------------


@home_command(app, "config")
def show_settings(call: HomeCall) -> None:
    """Show all settings and where they are set.

    Secrets are masked.
    """
    from skiway.config import shown

    origins = _origins(call)
    records = [
        {"key": key, "value": value, "origin": origins.get(key, "default")}
        for key, value in shown(call.settings).items()
    ]
    call.print_for_programs(records, ["key", "value", "origin"])
    if call.is_for_people:
        _print_settings(records)


def _print_settings(settings: Sequence[Mapping[str, str]]) -> None:
    """Wrap lines on a terminal; in a pipe or file, print one line per setting."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    key = Column("setting", min_width=max(len(setting["key"]) for setting in settings))
    table = Table(key, Column("value", overflow="fold"), Column("origin", overflow="fold"), box=None, pad_edge=False)
    for setting in settings:
        table.add_row(*map(Text, setting.values()), style="dim" if setting["origin"] == "default" else "bold")
    Console(width=None if sys.stdout.isatty() else UNFOLDED).print(table)


def _origins(call: HomeCall) -> dict[str, str]:
    """The origin of each setting that does not have its default."""
    from skiway.config import FILE_NAME
    from skiway.config.loading import from_environment, from_file, from_flags
    from skiway.config.settings import SHORT_FORMS

    file = call.file or call.home / FILE_NAME
    sources = (
        from_file(file) if call.file or file.is_file() else (),
        from_environment(os.environ),
        from_flags(key_values(call.given, "--set")),
    )
    return {SHORT_FORMS.get(value.key, value.key): value.origin for value in chain.from_iterable(sources)}


# -- demo --------------------------------------------------------------------------------------------------------------


INTERRUPTED: Final = 130
"""The exit code of programs that were interrupted by Ctrl-C."""


@app.command("demo")
def demo(
    home: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the demo lake.")] = HOME / "demo",
    once: Annotated[bool, typer.Option("--once", help="Run three queries, print their results and exit.")] = False,
    grpc: Grpc = None,
    http: Http = None,
) -> None:
    """Run a small demo lake.

    It prints the statements to type into DuckDB. The first run creates the lake and profiles its tables.
    """
    prepare_grpc()
    from skiway.demo.home import DemoHome
    from skiway.demo.output import Poster
    from skiway.runtime.lifecycle import remove_stale
    from skiway.runtime.process import running

    demo_home, poster = DemoHome.at(home.expanduser()), Poster()
    remove_stale(demo_home.path / READY_FILE)
    settings = _demo_settings(demo_home.path, grpc, http, once=once)
    poster.greet()
    for number in (signal.SIGINT, signal.SIGTERM):  # even if the parent process ignores them
        signal.signal(number, signal.default_int_handler)
    try:
        with _redirect_java(demo_home.path / "spark.log"), running(settings, demo_home.path) as process:
            _create_demo(demo_home, process, poster)
            _run_queries(demo_home, process, poster) if once else _serve_demo(demo_home, process, poster)
    except KeyboardInterrupt:
        sys.stderr.write("skiway: stopped; the next run continues from here\n")
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # a normal exit would wait for Spark to finish


@contextmanager
def _redirect_java(file: Path) -> Iterator[None]:
    """Redirect stderr of child processes to a file for the duration of the block; our own stderr is unchanged."""
    own, saved = sys.stderr, os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    sys.stderr = os.fdopen(os.dup(saved), "w", buffering=1)
    try:
        yield
    finally:
        sys.stderr.close()
        os.dup2(saved, 2)
        os.close(saved)
        sys.stderr = own


def _demo_settings(home: Path, grpc: str | None, http: str | None, *, once: bool) -> Settings:
    """The settings of the demo, which ignore the environment: the demo is the same everywhere."""
    from skiway.config import load

    addresses = {"server.grpc.address": grpc, "server.http.address": http}
    if once:  # nobody connects, so any port will do
        addresses = {key: address or "127.0.0.1:0" for key, address in addresses.items()}
    given = {key: address for key, address in addresses.items() if address is not None}
    return load(home, flags={"log.level": "ERROR", "pipelines.enabled": "true", **given})


def _create_demo(demo_home: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.demo.build import is_missing_pipeline, make, warm_spark

    if demo_home.is_complete and not is_missing_pipeline(demo_home):
        return
    with demo_home.making(), poster.making() as watcher:
        warm_spark()
        make(demo_home, rpc=process.addresses["rpc"], airport=process.addresses["airport"], watcher=watcher)
        demo_home.completed()


def _serve_demo(demo_home: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.client import AirportClient
    from skiway.demo.build import CATALOG
    from skiway.demo.output import contents
    from skiway.runtime.lifecycle import StopSignals, announced

    with StopSignals() as signals, announced(demo_home.path / READY_FILE, process.addresses):
        with AirportClient(process.addresses["airport"], CATALOG) as db:
            poster.lake(contents(db))
        poster.invitation(process.addresses, demo_home.path)
        signals.wait()


def _run_queries(demo_home: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.client import AirportClient
    from skiway.demo.build import CATALOG
    from skiway.demo.output import QUERIES, answer, contents

    with AirportClient(process.addresses["airport"], CATALOG) as db:
        poster.lake(contents(db))
        for number, query in enumerate(QUERIES, start=1):
            poster.answered(number, query, answer(db, query.sql))
    poster.goodbye(demo_home.path)


# -- mcp ---------------------------------------------------------------------------------------------------------------


@command(app, "mcp")
def mcp(
    call: Call,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve over HTTP at a loopback address; each request has its own token."
        ),
    ] = None,
) -> None:
    """Serve the lake to assistants with the Model Context Protocol.

    By default, it serves one client on standard input and output, with your token.
    """
    if call.account not in (None, "", "default"):
        raise InvalidArgument("MCP uses the account of the token: give --token, and leave out --account")
    location = call.location  # prepares gRPC, before the import
    from skiway.mcp import serve_http, serve_stdio

    if http is None:
        serve_stdio(location, call.renewed_token)
        return
    if call.token is not None:
        raise InvalidArgument("with --http, clients send their own tokens: leave out --token and SKIWAY_TOKEN")
    serve_http(location, http, ready=lambda url: typer.echo(f"MCP server at {url}", err=True))
