"""A folder of tables: those of one format below it, in namespaces that are the folders on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from skiway.errors import NotFound
from skiway.formats.files import Files, Found
from skiway.formats.locations import Location
from skiway.formats.source import Namespace, Source, TableHandle, TableName

__all__ = ["FolderSource", "Layout", "is_hidden"]


class Layout(Protocol):
    """How tables of a format lie in folders."""

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:
        """Is `folder`, in which these are, a table?"""

    def is_table_file(self, file: Found) -> bool:
        """Is this file, in a folder that is no table, a table by itself?"""

    def open(self, name: TableName, place: Location) -> TableHandle:
        """The table at `place`."""


def is_hidden(name: str) -> bool:
    """Names by which engines keep their own things beside the data; `_year=2026` is data."""
    return name.startswith((".", "_")) and "=" not in name


class FolderSource(Source):
    """The tables below `root`. The folder itself may be a table: then that is the only one, and has its name.

    `as_table` names a table that the folder is taken to be, whatever is in it.
    """

    def __init__(self, files: Files, root: Location, layout: Layout, *, as_table: TableName | None = None) -> None:
        self._files = files
        self._root = root
        self._layout = layout
        self._as_table = as_table

    def namespaces(self) -> list[Namespace]:
        return sorted({name.namespace for name, _ in self._all()})

    def tables(self, namespace: Namespace) -> list[str]:
        found = sorted(name.name for name, _ in self._all() if name.namespace == namespace)
        if not found:
            raise NotFound(
                f"{self._root} has no tables in namespace {'.'.join(namespace)!r}; see its namespaces",
                key="namespace.not_found",
            )
        return found

    def load(self, namespace: Namespace, table: str) -> TableHandle:
        wanted = TableName(namespace, table)
        for name, place in self._all(towards=wanted):
            if name == wanted:
                return self._layout.open(name, place)
        raise NotFound(
            f"{self._root} has no table {str(wanted)!r}; see its tables", key="table.not_found", table=str(wanted)
        )

    def _all(self, towards: TableName | None = None) -> Iterator[tuple[TableName, Location]]:
        """The tables with their places; only those on the way `towards` one, if it is given."""
        if self._as_table is not None:
            yield self._as_table, self._root
            return
        folders, files = self._files.children(self._root)
        if self._layout.is_table(self._root, folders, files):
            yield TableName((), self._root.name), self._root
        else:
            yield from self._below((), folders, files, towards)

    def _below(
        self, namespace: Namespace, folders: list[Location], files: list[Found], towards: TableName | None
    ) -> Iterator[tuple[TableName, Location]]:
        for file in files:
            if self._layout.is_table_file(file) and not is_hidden(file.location.name):
                yield TableName(namespace, file.location.name.rpartition(".")[0]), file.location
        for folder in folders:
            if is_hidden(folder.name) or not _is_on_the_way((*namespace, folder.name), towards):
                continue
            inner, found = self._files.children(folder)
            if self._layout.is_table(folder, inner, found):
                yield TableName(namespace, folder.name), folder
            else:
                yield from self._below((*namespace, folder.name), inner, found, towards)


def _is_on_the_way(path: Namespace, towards: TableName | None) -> bool:
    return towards is None or (*towards.namespace, towards.name)[: len(path)] == path
