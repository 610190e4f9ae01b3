"""The prompt of the SQL shell: statements that a person types, with line editing, completion and a history in a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

from skiway.cli.sql.completion import DELIMITERS, Names
from skiway.duckdb.engine import is_complete
from skiway.errors import SkiwayError

PROMPT: Final = "skiway> "
MORE: Final = "   ...> "
QUITS: Final = ("exit", "quit", "\\q", ".exit", ".quit")
HELPS: Final = ("help", "?", "\\?")
KEPT_LINES: Final = 2000
URI: Final = re.compile(r"\w+://[^\s'\"]+")


class Prompt:
    """Reads statements up to their semicolons."""

    def __init__(self, names: Callable[[], Names]) -> None:
        self._names = names
        self._lines: list[str] = []
        self._offered: Sequence[str] = ()
        self._history: History | None = None
        self._prepare()

    def _prepare(self) -> None:
        try:
            import readline
        except ImportError:  # on Windows, which edits lines itself
            return
        self._history = History(history_path())
        readline.set_auto_history(False)
        for line in self._history.lines():
            readline.add_history(line)
        readline.set_completer_delims(DELIMITERS)
        readline.set_completer(self._completion)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def statements(self, read: Callable[[str], str] = input) -> Iterator[str]:
        """Yield what the user types up to each semicolon; Ctrl-C discards the current lines, Ctrl-D or `exit` ends."""
        lines = self._lines
        while True:
            try:
                line = read(MORE if lines else PROMPT)
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo()
                lines.clear()
                continue
            word = "" if lines else line.strip().rstrip(";").lower()
            if word in QUITS:
                return
            if word in HELPS:
                line = ".help"
            if line.strip() or lines:
                lines.append(line)
            if lines and (lines[0].startswith(".") or is_complete("\n".join(lines))):
                self._remember()
                yield "\n".join(lines)
                lines.clear()

    def _remember(self) -> None:
        if self._history is None or has_secret("\n".join(self._lines)):
            return
        import readline

        for line in self._lines:
            readline.add_history(line)
        self._history.add(self._lines)

    def _completion(self, word: str, number: int) -> str | None:
        """Return one of the completions of a word, which readline asks for one after another."""
        if not number:
            import readline

            text = "\n".join([*self._lines, readline.get_line_buffer()[: readline.get_begidx()]])
            self._offered = ()
            with suppress(SkiwayError):  # a server that does not answer is reported for the statement
                self._offered = self._names().completions(text.lstrip(), word)
        return self._offered[number] if number < len(self._offered) else None


def history_path() -> Path:
    """Return the file of the history."""
    folder = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(folder).expanduser() / "skiway" / "sql_history"


class History:
    """Lines of earlier sessions, in a file that only its user can read. A history that cannot be stored is not missed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[str]:
        """Return the last lines; shorten the file when it has become long."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        if len(lines) > 2 * KEPT_LINES:
            with suppress(OSError):
                self._path.unlink()
            self.add(lines[-KEPT_LINES:])
        return lines[-KEPT_LINES:]

    def add(self, lines: Sequence[str]) -> None:
        """Store lines."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                os.fchmod(handle, 0o600)
                file.writelines(f"{line}\n" for line in lines)


def has_secret(text: str) -> bool:
    """Whether a statement may contain a secret: by its shape, in an address, or because it names one, as in CREATE SECRET."""
    from skiway.security.redaction import is_secret_name, is_secret_value, secret_in_uri

    return (
        is_secret_value(text)
        or any(is_secret_name(word) for word in re.findall(r"[\w.-]+", text.lower()))
        or any(secret_in_uri(uri) for uri in URI.findall(text))
    )
