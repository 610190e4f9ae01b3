"""`skiway config`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from skiway.cli.settings_of import flags, settings_of
from skiway.config import FILE_NAME, shown
from skiway.config.settings import SHORT_FORMS
from skiway.config.sources import from_environment, from_file, from_flags

__all__ = ["show"]

UNFOLDED = 10_000


def show(home: Path, file: Path | None, given: Sequence[str], *, as_json: bool) -> None:
    """Print every setting with its value and origin."""
    values = shown(settings_of(home, file, given))
    origins = _origins(home, file, given)
    rows = [(key, value, origins.get(key, "default")) for key, value in values.items()]
    if as_json:
        entries = [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]
        typer.echo(json.dumps(entries, indent=2))
        return
    _print_table(rows)


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    """Folded to the terminal; elsewhere one line per setting, for grep."""
    setting = Column("setting", min_width=max(len(key) for key, _, _ in rows))
    table = Table(
        setting, Column("value", overflow="fold"), Column("origin", overflow="fold"), box=None, pad_edge=False
    )
    for key, value, origin in rows:
        table.add_row(*map(Text, (key, value, origin)), style="dim" if origin == "default" else "bold")
    Console(width=None if sys.stdout.isatty() else UNFOLDED).print(table)


def _origins(home: Path, file: Path | None, given: Sequence[str]) -> dict[str, str]:
    """Where each setting was set that is not as it is by default."""
    found = file or home / FILE_NAME
    sources = (
        from_file(found) if file or found.is_file() else (),
        from_environment(os.environ),
        from_flags(flags(given)),
    )
    return {SHORT_FORMS.get(each.key, each.key): each.origin for each in chain.from_iterable(sources)}
