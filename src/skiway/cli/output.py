"""What commands print: tables, CSV, JSON, NDJSON, YAML and Markdown, in symbols that the terminal can show.

A result has named columns and two forms of each row: cells of text for tables, CSV and Markdown, and a JSON object for JSON,
NDJSON and YAML. Rows are written as they arrive, so a result of any size needs little memory.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TextIO

SYMBOLS: Final = {
    **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True)),
    "…": "~",
    "≈": "~",
    "±": "+-",
    "≤": "<=",
    "⊂": "in ",
    "–": "-",
    "·": "*",
    "×": "x",
    **dict(zip("─│┌┬┐├┼┤└┴┘", "-|+++++++++", strict=True)),
}
"""ASCII for the symbols that our output uses."""
_TABLE: Final = str.maketrans(SYMBOLS)
HANDLER: Final = "skiway.symbols"


def is_ascii() -> bool:
    """Whether the output shows only ASCII: a terminal in the locale C or POSIX, or another encoding than UTF-8.

    Python writes UTF-8 in these locales, which is right for files and pipes; a terminal may not show it.
    """
    encoding = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name
    if not encoding.startswith("utf"):
        return True
    return sys.stdout.isatty() and os.environ.get("LC_ALL") in ("C", "POSIX")


def shown_symbols(text: str) -> str:
    """The text with symbols in ASCII, where the output shows only ASCII."""
    return text if text.isascii() or not is_ascii() else text.translate(_TABLE)


def prepare_terminal() -> None:
    """Write characters that the output cannot show as ASCII symbols or escapes, instead of failing."""
    codecs.register_error(HANDLER, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if not hasattr(stream, "reconfigure"):
            continue
        if is_ascii() and codecs.lookup(stream.encoding).name.startswith("utf"):
            stream.reconfigure(encoding="ascii", errors=HANDLER)
        else:
            stream.reconfigure(errors=HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(SYMBOLS.get(char) or char.encode("ascii", "backslashreplace").decode() for char in text), error.end


def discard_output() -> None:
    """Write the rest of the output nowhere, or else the exit of the process would report it as lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 file`, `1,200 files` or `2 branches`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


Row = Sequence[str | None]
"""The cells of a row; None is NULL."""

GAP: Final = "  "
INDENT: Final = "    "
ELLIPSIS: Final = "…"
NULL: Final = "NULL"
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
BOLD: Final = "\x1b[1m"
RESET: Final = "\x1b[0m"
PLAIN_YAML: Final = re.compile(r"[A-Za-z_/][\w ./@-]*[\w./@-]|[A-Za-z_]")
YAML_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


class Output(StrEnum):
    """The format of a result."""

    table = "table"
    csv = "csv"
    json = "json"
    ndjson = "ndjson"
    yaml = "yaml"
    markdown = "markdown"

    @property
    def has_documents(self) -> bool:
        """Whether rows are written as JSON objects; otherwise as cells of text."""
        return self in (Output.json, Output.ndjson, Output.yaml)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Only a column with `min_width` is shortened on a terminal."""

    title: str
    right: bool = False
    min_width: int | None = None


# -- documents ---------------------------------------------------------------------------------------------------------


def write_documents(output: Output, documents: Iterable[str], stream: TextIO | None = None) -> None:
    """Write JSON texts, one for each row, as a JSON array, as lines, or as a list in YAML."""
    out = stream or sys.stdout
    if output is Output.json:
        before = "[\n"
        for text in documents:
            out.write(f"{before}{text}")
            before = ",\n"
        out.write("[]\n" if before == "[\n" else "\n]\n")
        return
    empty = True
    for text in documents:
        empty = False
        if output is Output.ndjson:
            out.write(f"{text if chr(10) not in text else json.dumps(json.loads(text), ensure_ascii=False)}\n")
        else:
            out.write(
                "".join(f"{line}\n" for line in _yaml_item(json.loads(text, parse_float=_Number, parse_int=_Number)))
            )
    if empty and output is Output.yaml:
        out.write("[]\n")


class _Number(str):
    """A number as it was written, so that no digit is lost."""

    __slots__ = ()


def yaml_lines(value: Any) -> Iterator[str]:
    """Yield the lines of a value in block style."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            if isinstance(each, Mapping | list) and each:
                yield f"{_yaml_scalar(str(key))}:"
                yield from (f"  {line}" for line in yaml_lines(each))
            else:
                yield f"{_yaml_scalar(str(key))}: {_yaml_scalar(each)}"
    elif isinstance(value, list) and value:
        for each in value:
            yield from _yaml_item(each)
    else:
        yield _yaml_scalar(value)


def _yaml_item(value: Any) -> Iterator[str]:
    for number, line in enumerate(yaml_lines(value)):
        yield f"{'  ' if number else '- '}{line}"


def _yaml_scalar(value: Any) -> str:
    """Return a value on one line. Text is quoted, as in JSON, unless it cannot be taken for anything else."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str) and PLAIN_YAML.fullmatch(value) and value.lower() not in YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


# -- text --------------------------------------------------------------------------------------------------------------


def write_texts(
    output: Output, columns: Sequence[Column], pages: Iterable[Sequence[Row]], styles: Mapping[str, str] | None = None
) -> None:
    """Write rows of text as CSV, a Markdown table, or an aligned table. NULL is empty in CSV, as in DuckDB's.

    `styles` are those of texts in aligned tables.
    """
    match output:
        case Output.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow([column.title for column in columns])
            for page in pages:
                writer.writerows(page)
        case Output.markdown:
            _write_markdown(columns, pages)
        case _:
            table = TableWriter(columns, styles=styles)
            for page in pages:
                table.write(page)
                sys.stdout.flush()
            table.end()


def _write_markdown(columns: Sequence[Column], pages: Iterable[Sequence[Row]]) -> None:
    out = sys.stdout
    out.write(f"| {' | '.join(_markdown(column.title) for column in columns)} |\n")
    out.write(f"|{'|'.join('--:' if column.right else '---' for column in columns)}|\n")
    for page in pages:
        out.writelines(f"| {' | '.join(_markdown(NULL if cell is None else cell) for cell in row)} |\n" for row in page)


def _markdown(text: str) -> str:
    """Escape what would end the cell or the row."""
    return one_line(text.replace("\\", "\\\\").replace("|", "\\|").replace("\r\n", "<br>").replace("\n", "<br>"))


class TableWriter:
    """Writes an aligned table page by page. The first page determines the widths; later cells may exceed them.

    On a terminal, columns with a `min_width` shrink to fit. If that is not enough, the last columns continue on further
    lines, which are indented.
    """

    def __init__(self, columns: Sequence[Column], *, styles: Mapping[str, str] | None = None) -> None:
        self._columns = list(columns)
        self._styles = styles or {}
        self._widths: list[int] | None = None
        self._lines: Sequence[range] = ()
        self._is_terminal = sys.stdout.isatty()

    def write(self, page: Sequence[Row]) -> None:
        """Write rows."""
        rows = [[one_line(NULL if cell is None else cell) for cell in row] for row in page]
        if self._widths is None:
            self._begin(rows)
        for row in rows:
            self._row(row)

    def end(self) -> None:
        """Write the titles if there were no rows."""
        if self._widths is None:
            self._begin([])

    def _begin(self, rows: Sequence[Sequence[str]]) -> None:
        columns = self._columns
        full = [max([width(column.title), *(width(row[i]) for row in rows)]) for i, column in enumerate(columns)]
        self._lines = [range(len(columns))]
        if self._is_terminal:
            room = _terminal_width()
            least = [
                found if column.min_width is None else min(found, column.min_width)
                for column, found in zip(columns, full, strict=True)
            ]
            self._lines = list(_split(least, room))
            for line in self._lines:
                part = slice(line.start, line.stop)
                full[part] = _fit(full[part], least[part], room - (len(INDENT) if line.start else 0))
        self._widths = full
        self._row([column.title for column in columns], style=BOLD)

    def _row(self, row: Sequence[str], style: str = "") -> None:
        for line in self._lines:
            text = GAP.join(self._cell(number, row[number], style) for number in line).rstrip()
            if text or not line.start:
                sys.stdout.write(f"{INDENT if line.start else ''}{text}\n")

    def _cell(self, number: int, text: str, style: str) -> str:
        assert self._widths is not None
        column, room = self._columns[number], self._widths[number]
        shown = _shortened(text, room) if self._is_terminal and column.min_width is not None else text
        blanks = " " * (room - width(shown))
        mark = (style or self._styles.get(text, "")) if self._is_terminal and has_colors() else ""
        colored = f"{mark}{shown}{RESET}" if mark else shown
        return f"{blanks}{colored}" if column.right else f"{colored}{blanks}"


def _split(widths: Sequence[int], room: int) -> Iterator[range]:
    """Divide columns among lines that fit, each with at least one column."""
    start = 0
    for end in range(1, len(widths) + 1):
        indent = len(INDENT) if start else 0
        if end == len(widths) or _total(widths[start : end + 1]) + indent > room:
            yield range(start, end)
            start = end


def _fit(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that fit; those with the most spare width shrink first."""
    fitted = list(widths)
    while (excess := _total(fitted) - room) > 0:
        spare = [wide - narrow for wide, narrow in zip(fitted, least, strict=True)]
        widest = max(range(len(spare)), key=spare.__getitem__)
        if not spare[widest]:
            break
        fitted[widest] -= min(excess, spare[widest])
    return fitted


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def has_colors() -> bool:
    """Whether the terminal shows styles."""
    return os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _terminal_width() -> int:
    return shutil.get_terminal_size((int(os.environ.get("COLUMNS") or 80), 24)).columns


def width(text: str) -> int:
    """Return the number of places that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _shortened(text: str, room: int) -> str:
    if width(text) <= room:
        return text
    end = room - 1
    while end and width(text[:end]) > room - 1:
        end -= 1
    return f"{text[:end]}{shown_symbols(ELLIPSIS)}"


def one_line(text: str) -> str:
    """Escape control characters, which could break the table or change the terminal, and symbols that it cannot show."""
    shown = shown_symbols(text)
    return (
        shown
        if shown.isprintable()
        else CONTROL.sub(lambda found: ESCAPES.get(found[0], f"\\x{ord(found[0]):02X}"), shown)
    )
