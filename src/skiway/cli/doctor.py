"""`skiway doctor` runs the checks of `skiway.doctor`, and prints what they find; `skiway explain` explains the codes of errors."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Final

import typer

from skiway.cli.command import READY_FILE, Call, HomeCall, group, home_command
from skiway.cli.options import Account, OutputOption, Server, Token
from skiway.cli.output import Output, has_colors
from skiway.errors import NotFound, SkiwayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.config import Settings
    from skiway.doctor import Finding, ServerAddress
    from skiway.runtime.lifecycle import Announced

app = group("doctor", None)

COLORS: Final = {
    "ok": typer.colors.GREEN,
    "warning": typer.colors.YELLOW,
    "failed": typer.colors.RED,
    "skipped": typer.colors.BRIGHT_BLACK,
}
NAMES: Final = 18
STATES: Final = 9


@home_command(app, "doctor")
def doctor(
    call: HomeCall,
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
) -> None:
    """Check the installation, the home and its running server.

    Each check shows what it found and, if something is wrong, what to do. Nothing is changed. The exit code is 1 if a check
    failed.
    """
    from skiway.doctor import ServerAddress, State

    def address(running: Announced | None) -> ServerAddress | None:
        """The named server, else that of the home. Without a token, the login to the server is used."""
        if server is not None:
            return ServerAddress(server, http, Call(server, token).access_token, account)
        if running is None:
            return None
        own = running.addresses["rpc"]
        own_http = http or running.addresses.get("http")
        return ServerAddress(own, own_http, Call(own, token).access_token, account, running.version)

    findings = []
    for finding in _findings(call, address, start_spark=start_spark):
        findings.append(finding)
        if call.is_for_people:
            _show(finding)
    call.print_for_programs(findings, ["check", "state", "evidence", "fix"])
    counts = Counter(finding.state for finding in findings)
    typer.echo(", ".join(f"{counts[state]} {state}" for state in State if counts[state]), err=True)
    if counts[State.failed]:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code, as `skiway explain` prints it."""

    code: str
    meaning: str
    what_to_do: str
    grpc: str
    python: str


@app.command("explain")
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", show_default=False, help="Such as MC_CONFLICT; all codes without it."),
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Explain a code of an error: what it means, and what to do.

    Codes are in the audit log, in the events of jobs, on error pages, and in the details of errors over gRPC.
    """
    from skiway.cli import rendering
    from skiway.foundation.causes import suggestion
    from skiway.foundation.doors import EXPLANATIONS, statuses

    codes = {name: ErrorCode(name, *each, *map(" or ".join, statuses(name))) for name, each in EXPLANATIONS.items()}
    if code is None:
        rendering.write_records(output, codes.values(), ["code", "meaning"], empty="")
        return
    name = f"MC_{code.upper().removeprefix('MC_')}"
    if name not in codes:
        raise NotFound(f"there is no code {code}; {suggestion(name, codes) or 'skiway explain lists all codes'}")
    rendering.write_record(output, codes[name])


def _findings(
    call: HomeCall, address_of: Callable[[Announced | None], ServerAddress | None], *, start_spark: bool
) -> Iterator[Finding]:
    from skiway.doctor import Finding, State, examine, home_checks, machine_checks, server_checks
    from skiway.runtime.lifecycle import read_announced

    settings, home = None, call.home
    try:
        settings = call.settings
        yield Finding("settings", State.ok, f"those of {home} are valid")
    except SkiwayError as error:
        yield Finding("settings", State.failed, error.message, "correct the settings; skiway config shows all")
    yield from examine(machine_checks(start_spark=_spark(settings) if start_spark and settings else None))
    ready_file = home / READY_FILE
    if settings is not None:
        yield from examine(home_checks(settings, home, ready_file=ready_file))
    try:
        address = address_of(read_announced(ready_file))
    except SkiwayError as error:
        yield Finding("login", State.failed, error.message, "run skiway login again")
        return
    if address is not None:
        yield from examine(server_checks(address))
    else:
        evidence = f"no server runs in {home}"
        yield Finding("server", State.skipped, evidence, "start it with `skiway serve`, or name one with --server")


def _spark(settings: Settings) -> Callable[[], SparkSession]:
    from skiway.runtime.lake import spark_place

    return spark_place(settings.reconciler.spark).session


def _show(finding: Finding) -> None:
    """Print a finding, with lines wrapped to the width of the terminal."""
    indent = " " * (STATES + NAMES)
    width = max(60, get_terminal_size((100, 24)).columns)
    state = f"{finding.state:<{STATES}}"
    shown = typer.style(state, fg=COLORS[finding.state]) if has_colors() else state
    lines = _wrapped(finding.evidence, width - len(indent))
    if finding.fix:
        lines += _wrapped(f"fix: {finding.fix}", width - len(indent))
    typer.echo(f"{shown}{finding.check:<{NAMES}}{lines[0]}")
    for line in lines[1:]:
        typer.echo(f"{indent}{line}")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
