"""Open sources: a request with an address, options and credentials goes to the opener of its kind.

Other packages add kinds of sources as entry points of the group `skiway.sources`. `FolderSource` is shared by all formats
that keep tables in folders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import InvalidArgument, NotFound
from skiway.formats.files import FileCache, Files, Found, Reach
from skiway.formats.source import Namespace, Snapshot, Source, TableHandle, TableName, data_files
from skiway.security.redaction import without_secrets
from skiway.security.source_access import Location, SourceAccess, location


@dataclass(frozen=True, slots=True)
class Totals:
    """How much data a snapshot has: its data files, their size, and the rows. `rows` is None if deletes have to be read first."""

    files: int
    size_bytes: int
    rows: int | None

    @classmethod
    def of(cls, files: pa.Table) -> Self:
        """The totals of a file table."""
        data = data_files(files)
        is_known = not (data["deleted_rows"].null_count or data["row_count"].null_count)
        rows = _sum(data["row_count"]) - _sum(data["deleted_rows"]) if is_known else None
        return cls(data.num_rows, _sum(data["size_bytes"]), rows)


@dataclass(frozen=True)
class OpenedTable:
    """A table in its current state.

    A Parquet folder has no snapshot ids of its own. For such a table, `known` has the snapshots that the metastore recorded,
    and `recall` returns a handle for each of them. For all other tables, `handle` reads every snapshot.
    """

    handle: TableHandle
    current: Snapshot | None
    known: Sequence[Snapshot] = ()
    recall: Callable[[Snapshot], TableHandle] | None = None

    @cached_property
    def snapshots(self) -> Sequence[Snapshot]:
        """All snapshots, from old to new."""
        return [*self.known, *self.handle.snapshots(self.known)]

    def at(self, snapshot: Snapshot) -> TableHandle:
        """The handle that reads the snapshot."""
        return self.handle if self.recall is None else self.recall(snapshot)

    def totals(self, snapshot: Snapshot) -> Totals:
        """How much data a snapshot has. The totals of the current one are computed once: every scan needs them, at 0.2 ms."""
        return self._current_totals if snapshot is self.current else Totals.of(self.at(snapshot).files(snapshot))

    @cached_property
    def _current_totals(self) -> Totals:
        assert self.current is not None  # `totals` is called with a snapshot
        return Totals.of(self.at(self.current).files(self.current))


def _sum(column: pa.ChunkedArray) -> int:
    found: int = pc.sum(column, min_count=0).as_py()
    return found


KINDS: Final = {
    "iceberg": "skiway.formats.iceberg.sources:open_iceberg",
    "glue": "skiway.formats.catalogs.glue:open_glue",
    "hive": "skiway.formats.catalogs.hive:open_hive",
    "unity": "skiway.formats.catalogs.unity:open_unity",
    "delta": "skiway.formats.delta.table:open_delta",
    "parquet": "skiway.formats.folders.parquet:open_parquet",
    "csv": "skiway.formats.folders.text:open_text",
    "json": "skiway.formats.folders.text:open_text",
}


@dataclass(frozen=True)
class SourceRequest:
    """What an opener gets: an address, options, credentials, which are never shown, and the cache to use.

    `access` decides what may be opened. An opener asks it before it opens anything, or reads through `files`, which does.
    """

    kind: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "source"
    cache: FileCache = field(default_factory=FileCache, repr=False, compare=False)
    access: SourceAccess = field(default_factory=SourceAccess, repr=False)

    @property
    def root(self) -> Location:
        """The location of a source that consists of files."""
        return location(self.uri)

    @property
    def address(self) -> str:
        """The address as messages show it."""
        return without_secrets(self.uri)

    @property
    def properties(self) -> dict[str, str]:
        """Options and credentials in one mapping."""
        return {**self.options, **self.credentials}

    @property
    def as_table(self) -> TableName | None:
        """The name of the table if, according to the options, the address is a single table."""
        name = self.options.get("external.table-name")
        namespace = tuple(filter(None, self.options.get("external.namespace", "").split(".")))
        return TableName(namespace, name) if name else None

    def files(self, vended: Mapping[str, str] | None = None) -> Files:
        """The files the source may read, of those that `access` permits.

        Local files must be below its address, its warehouse or a folder in the option `allowed-locations`. With that
        option, so must files in S3. `vended` are S3 properties that a catalog returned for one table.
        """
        allowed = [each.strip() for each in self.options.get("allowed-locations", "").split(",") if each.strip()]
        own = [self.uri.removeprefix("sqlite:///"), self.options.get("warehouse", "").strip()]
        roots = tuple(location(each) for each in (*own, *allowed) if _is_location(each))
        if roots and is_metadata_file(roots[0]):
            roots = (table_folder(roots[0]), *roots)
        s3 = self.access.s3_properties({**self.properties, **(vended or {})})
        return Files(s3, Reach(roots, self.access, in_s3=not allowed), self.cache)


def _is_location(text: str) -> bool:
    """Is it a location of files, rather than the address of a service or the name of a warehouse?"""
    return "/" in text and not text.startswith(("http:", "https:", "postgresql", "thrift:"))


def is_metadata_file(place: Location) -> bool:
    """Whether a location is that of a metadata file of an Iceberg table."""
    return place.name.endswith((".metadata.json", ".metadata.json.gz"))


def table_folder(metadata: Location) -> Location:
    """The folder of the table with this metadata file."""
    return metadata.parent.parent if metadata.parent.name == "metadata" else metadata.parent


def open_source(
    kind: str,
    uri: str,
    *,
    options: Mapping[str, str] | None = None,
    credentials: Mapping[str, str] | None = None,
    cache: FileCache | None = None,
    access: SourceAccess | None = None,
    account: str = "",
) -> Source:
    """Open the source at `uri`: an upstream catalog, a folder of tables, or a single table.

    `options` and `credentials` are listed in docs/formats.md. Sources that are given the same `cache` share what they
    read; without one, the source gets its own. `access` decides what the source may open on behalf of `account`; by
    default, whatever this program may open.
    """
    cache = FileCache() if cache is None else cache
    allowed = (access or SourceAccess()).of_account(account)
    request = SourceRequest(kind, uri, dict(options or {}), dict(credentials or {}), cache=cache, access=allowed)
    return _opener(kind)(request)


def _opener(kind: str) -> Callable[[SourceRequest], Source]:
    if kind in KINDS:
        module, _, function = KINDS[kind].partition(":")
        opener: Callable[[SourceRequest], Source] = getattr(import_module(module), function)
        return opener
    others: dict[str, EntryPoint] = {each.name: each for each in entry_points(group="skiway.sources")}
    if kind not in others:
        raise InvalidArgument(
            f"unknown kind of source {kind!r}; known kinds are {', '.join(sorted({*KINDS, *others}))}",
            key="source.kind",
            kind=kind,
        )
    loaded: Callable[[SourceRequest], Source] = others[kind].load()
    return loaded


class FolderLayout(ABC):
    """How a format lays out tables in folders, which `files` opens."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @abstractmethod
    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:
        """Is `folder`, which contains these folders and files, a table?"""

    def is_table_file(self, file: Found) -> bool:  # noqa: ARG002
        """Is this file, in a folder that is not a table, a table on its own?"""
        return False

    @abstractmethod
    def open(self, name: TableName, place: Location) -> TableHandle:
        """Open the table at `place`."""


def is_hidden(name: str) -> bool:
    """Is it a name that engines use for their own files next to the data? `_year=2026` is data."""
    return name.startswith((".", "_")) and "=" not in name


def open_folders(request: SourceRequest, layout: FolderLayout, *, single: TableName | None = None) -> Source:
    """Open the tables below the address of a request, or the `single` one that it is; raises NotFound if nothing is there."""
    if single is None and not any(layout.files.children(request.root)):
        raise NotFound(
            f"there is nothing at {str(request.root)!r}; check the address of the source", key="source.not_found"
        )
    return FolderSource(request.root, layout, as_table=request.as_table or single)


class FolderSource(Source):
    """The tables of one format below `root`; the folders on the way to a table are its namespace.

    If `root` itself is a table, it is the only one and is named after the folder. With `as_table`, `root` is taken to be
    the table of that name, whatever it contains.
    """

    def __init__(self, root: Location, layout: FolderLayout, *, as_table: TableName | None = None) -> None:
        self._files, self._root, self._layout, self._as_table = layout.files, root, layout, as_table

    def namespaces(self) -> list[Namespace]:
        return sorted({name.namespace for name, _ in self._all()})

    def tables(self, namespace: Namespace) -> list[str]:
        found = sorted(name.name for name, _ in self._all() if name.namespace == namespace)
        if not found:
            raise NotFound(
                f"{self._root} has no tables in namespace {'.'.join(namespace)!r}; list its namespaces",
                key="namespace.not_found",
            )
        return found

    def load(self, namespace: Namespace, table: str) -> TableHandle:
        wanted = TableName(namespace, table)
        for name, place in self._all(towards=wanted):
            if name == wanted:
                return self._layout.open(name, place)
        raise NotFound(
            f"{self._root} has no table {str(wanted)!r}; list its tables", key="table.not_found", table=str(wanted)
        )

    def location_of(self, namespace: Namespace, table: str) -> str:
        wanted = TableName(namespace, table)
        return next((str(place) for name, place in self._all(towards=wanted) if name == wanted), "")

    def _all(self, towards: TableName | None = None) -> Iterator[tuple[TableName, Location]]:
        """The tables with their locations; only those on the path `towards` one, if given."""
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
            if self._layout.is_table_file(file):
                yield TableName(namespace, file.location.name.rpartition(".")[0]), file.location
        for folder in folders:
            path = (*namespace, folder.name)
            is_on_path = towards is None or (*towards.namespace, towards.name)[: len(path)] == path
            if is_hidden(folder.name) or not is_on_path:
                continue
            inner, found = self._files.children(folder)
            if self._layout.is_table(folder, inner, found):
                yield TableName(namespace, folder.name), folder
            else:
                yield from self._below(path, inner, found, towards)
