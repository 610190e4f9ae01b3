"""Small reads by SQLite's own driver: SQLAlchemy takes many times longer for them than SQLite does.

The statements are still SQLAlchemy's; each is turned into text once.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Dialect, Select

__all__ = ["DriverReads"]

_Text: TypeAlias = tuple[str, list[tuple[str, Any]]]
"""A statement as the driver takes it, and the parameter of each place with what it is unless it is given."""


class DriverReads:
    """Asks statements over connections that `connect` opens, each used by one thread at a time and kept for the next.

    Every read sees what was committed before it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect) -> None:
        self._connect = connect
        self._dialect = dialect
        self._texts: dict[Select[*tuple[Any, ...]], _Text] = {}
        self._idle: deque[sqlite3.Connection] = deque()  # whose ends may be used by several threads at once
        self._closed = False

    def rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """All rows; `statement` must be one of a few that are asked again and again."""
        text, places = self._texts.get(statement) or self._compiled(statement)
        connection = self._taken()
        try:
            rows = connection.execute(text, [parameters.get(*place) for place in places]).fetchall()
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return rows

    def close(self) -> None:
        """Close all connections; one that is in use, when it is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _taken(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def _compiled(self, statement: Select[*tuple[Any, ...]]) -> _Text:
        compiled = statement.compile(dialect=self._dialect)
        names = compiled.positiontup
        assert names is not None, "SQLite's parameters have places"
        self._texts[statement] = found = (compiled.string, [(name, compiled.params[name]) for name in names])
        return found
