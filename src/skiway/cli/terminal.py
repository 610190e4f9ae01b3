"""What the terminal can show: symbols on terminals that know only ASCII, and the end of the output."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final

__all__ = ["discard_output", "is_ascii", "prepare_terminal", "shown_symbols"]

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
