"""`%sql` and `%%sql` for notebooks: `%load_ext skiway.duckdb` adds them."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from skiway.client.connection import Location
from skiway.duckdb.connection import LakeConnection, connect
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

DEFAULT: Final = "127.0.0.1:50051"
ADDRESS: Final = re.compile(r"grpc(\+\w+)?://\S+")
HELP: Final = (
    "give statements, as in %sql SELECT 1; %sql grpc://host:port connects to a server, with the token in $SKIWAY_TOKEN"
)


class SqlMagic:
    """The magic of a notebook. Its statements share a connection, which the first of them opens."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._lake: LakeConnection | None = None

    def __call__(self, line: str, cell: str | None = None) -> DuckDBPyRelation | None:
        """Run SQL on the lake: `%sql SELECT …`, or `%%sql` with statements on the lines below it.

        `%sql grpc://host:port` connects to a server; the default is that in `$SKIWAY_SERVER`. The token is that in `$SKIWAY_TOKEN`.
        `%%sql name` stores the rows as the variable `name`. Variables of the notebook, such as DataFrames, can be read like tables.
        """
        words = line.split() if cell is not None else shlex.split(line) if ADDRESS.match(line) else []
        if words and ADDRESS.fullmatch(words[0]):
            self._connect(words.pop(0))
            if cell is None:
                return None
        text = line if cell is None else cell
        if len(words) > 1 or not all(map(str.isidentifier, words)):
            raise InvalidArgument(f"%%sql {line} names no variable: write %%sql, or %%sql name")
        if not text.strip():
            raise InvalidArgument(f"there is no statement to run: {HELP}")
        rows = self._connected().sql(text, variables=self._shell.user_ns)
        if not words:
            return rows
        self._shell.push({words[0]: rows})
        return None

    def _connected(self) -> LakeConnection:
        return self._lake or self._connect(os.environ.get("SKIWAY_SERVER") or DEFAULT)

    def _connect(self, address: str) -> LakeConnection:
        self.close()
        self._lake = connect(Location.with_scheme(address), token=os.environ.get("SKIWAY_TOKEN") or None)
        return self._lake

    def close(self) -> None:
        """Close the connection."""
        if self._lake is not None:
            self._lake.close()
            self._lake = None


LOADED: Final[dict[int, SqlMagic]] = {}
"""The magic of each notebook, until it is unloaded."""


def load(shell: Any) -> None:
    """Add the magic to a notebook. IPython does not expand `{…}` in its statements, because braces are SQL."""
    magic = SqlMagic(shell)

    def sql(line: str, cell: str | None = None) -> DuckDBPyRelation | None:
        return magic(line, cell)

    sql.__doc__ = SqlMagic.__call__.__doc__
    sql.__dict__["_ipython_magic_no_var_expand"] = True
    shell.register_magic_function(sql, magic_kind="line_cell", magic_name="sql")
    LOADED[id(shell)] = magic


def unload(shell: Any) -> None:
    """Remove the magic from a notebook, and close its connection."""
    if (magic := LOADED.pop(id(shell), None)) is not None:
        magic.close()
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("sql", None)
