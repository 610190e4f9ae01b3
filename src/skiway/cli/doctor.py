"""`skiway doctor`: run the checks of `skiway.doctor`, and print what they find."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

import typer

from skiway.cli.command import READY_FILE, Call
from skiway.cli.options import load_settings, prepare_grpc
from skiway.cli.output import Output, has_colors
from skiway.cli.rendering import write_records
from skiway.doctor import Finding, ServerAddress, State, examine, home_checks, machine_checks, server_checks
from skiway.errors import SkiwayError
from skiway.runtime.lifecycle import Announced, read_announced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.config import Settings


COLORS: Final = {
    State.ok: typer.colors.GREEN,
    State.warning: typer.colors.YELLOW,
    State.failed: typer.colors.RED,
    State.skipped: typer.colors.BRIGHT_BLACK,
}
NAMES: Final = 18
STATES: Final = 9


@dataclass(frozen=True, slots=True)
class Target:
    """The server to check, as the options name it; without an address, that of the home."""

    server: str | None
    http: str | None
    token: str | None
    account: str | None

    def address(self, running: Announced | None) -> ServerAddress | None:
        """The address of the server; None if none is named and none runs in the home."""
        if self.server is not None:
            return ServerAddress(self.server, self.http, self._token(self.server), self.account)
        if running is None:
            return None
        address, http = running.addresses["rpc"], self.http or running.addresses.get("http")
        return ServerAddress(address, http, self._token(address), self.account, running.version)

    def _token(self, server: str) -> str | None:
        """The given token, or that of the login to the server."""
        return Call(server, self.token).access_token


def run(
    home: Path,
    file: Path | None,
    given: Sequence[str],
    target: Target,
    *,
    start_spark: bool,
    output: Output,
) -> None:
    """Run all checks; exit with 1 if one failed."""
    prepare_grpc()
    found = []
    for finding in _findings(home, file, given, target, start_spark=start_spark):
        found.append(finding)
        if output is Output.table:
            _show(finding)
    if output is not Output.table:
        write_records(output, found, ["check", "state", "evidence", "fix"], empty="")
    counts = Counter(finding.state for finding in found)
    summary = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    typer.echo(summary, err=True)
    if counts[State.failed]:
        raise typer.Exit(1)


def _findings(
    home: Path, file: Path | None, given: Sequence[str], target: Target, *, start_spark: bool
) -> Iterator[Finding]:
    settings, problem = _settings(home, file, given)
    yield problem or Finding("settings", State.ok, f"those of {home} are valid")
    yield from examine(machine_checks(start_spark=_spark(settings) if start_spark and settings else None))
    ready_file = home / READY_FILE
    if settings is not None:
        yield from examine(home_checks(settings, home, ready_file=ready_file))
    try:
        address = target.address(read_announced(ready_file))
    except SkiwayError as error:
        yield Finding("login", State.failed, error.message, "run skiway login again")
        return
    if address is not None:
        yield from examine(server_checks(address))
    else:
        evidence = f"no server runs in {home}"
        yield Finding("server", State.skipped, evidence, "start it with `skiway serve`, or name one with --server")


def _settings(home: Path, file: Path | None, given: Sequence[str]) -> tuple[Settings | None, Finding | None]:
    try:
        return load_settings(home, file, given), None
    except SkiwayError as error:
        return None, Finding("settings", State.failed, error.message, "correct the settings; skiway config shows all")


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
