"""The forms of results that only the SQL shell has, beside the formats of all commands: `.mode` chooses one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from skiway.cli.output import NULL, Column, Output, Row, one_line, shown_symbols, width
from skiway.errors import InvalidArgument
from skiway.foundation.causes import suggestion


class Form(StrEnum):
    """A table with borders, or one line for each value."""

    box = "box"
    line = "line"


MODES: Final[tuple[Output | Form, ...]] = (*Output, *Form)
FOR_PEOPLE: Final[tuple[Output | Form, ...]] = (Output.table, *Form)
"""Those with which results are limited, and messages are part of the output."""


def mode_called(name: str) -> Output | Form:
    """Return the mode with this name."""
    found = next((each for each in MODES if each.value == name), None)
    if found is None:
        hint = suggestion(name, MODES) or f"choose {', '.join(MODES)}"
        raise InvalidArgument(f"there is no mode {name}: {hint}")
    return found


def write_rows(form: Form, columns: Sequence[Column], pages: Iterable[Sequence[Row]]) -> None:
    """Write rows of text. A box is as wide as its widest values, so it begins after the last row."""
    if form is Form.line:
        _write_lines([column.title for column in columns], pages)
    else:
        _write_box(
            columns, [[one_line(NULL if cell is None else cell) for cell in row] for page in pages for row in page]
        )


def _write_box(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    titles = [one_line(column.title) for column in columns]
    widths = [max(map(width, cells)) for cells in zip(titles, *rows, strict=True)]

    def line(left: str, middle: str, right: str) -> str:
        return f"{left}{middle.join('─' * (room + 2) for room in widths)}{right}\n"

    def row(cells: Sequence[str]) -> str:
        padded = (
            f" {' ' * (room - width(cell))}{cell} " if column.right else f" {cell}{' ' * (room - width(cell))} "
            for column, room, cell in zip(columns, widths, cells, strict=True)
        )
        return f"│{'│'.join(padded)}│\n"

    parts = [line("┌", "┬", "┐"), row(titles), line("├", "┼", "┤"), *map(row, rows), line("└", "┴", "┘")]
    sys.stdout.writelines(map(shown_symbols, parts))


def _write_lines(titles: Sequence[str], pages: Iterable[Sequence[Row]]) -> None:
    widest = max(map(width, titles))
    before = ""
    for page in pages:
        for row in page:
            sys.stdout.write(before)
            for title, cell in zip(titles, row, strict=True):
                shown = one_line(NULL if cell is None else cell)
                sys.stdout.write(f"{' ' * (widest - width(title))}{title} = {shown}\n")
            before = "\n"
        sys.stdout.flush()
