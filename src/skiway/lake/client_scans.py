"""Scans that DuckDB's client runs itself: it gets the files that a filter leaves, instead of their rows.

The property `scan.mode` of a catalog selects who reads: `server` (the default), `client`, or `auto`. The client gets no
files that it would read differently than the server: files with deleted rows, or in which columns have other names, types
or places. It gets no files that it cannot reach, either: the warehouse is on a disk, so it has to be on this machine.

The client's reader gets the requested columns, but no filter. So `auto` lets the client read only without a filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import pyarrow as pa

from skiway.airport import FunctionCall, Request, ScanOptions
from skiway.formats import Snapshot, TableHandle, WholeFile
from skiway.formats.schemas import field_id
from skiway.lake.columns import ROWID, Columns
from skiway.lake.direct_files import is_direct, is_nested
from skiway.metastore.resources.catalogs import SCAN_MODE, ScanMode
from skiway.model import v1

__all__ = ["file_calls", "may_read_files", "scan_mode"]

_LOCAL: Final = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127.")
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
_PATTERN: Final = frozenset("*?[]{}")
"""DuckDB takes a path with one of these characters for a pattern of paths."""


def scan_mode(catalog: v1.Catalog) -> ScanMode:
    """Who reads the tables of a catalog."""
    return cast(ScanMode, catalog.properties.get(SCAN_MODE, "server"))


def may_read_files(mode: ScanMode, options: ScanOptions, request: Request) -> bool:
    """Whether the client should read the files of this scan itself, as far as the request tells."""
    if mode == "server" or options.columns is None or ROWID in options.columns:
        return False
    return _is_local(request) and (mode == "client" or not options.filter)


def _is_local(request: Request) -> bool:
    """Whether the client is on this machine. A proxy on this machine says for whom it calls."""
    return request.peer.startswith(_LOCAL) and not any(request.header(name) for name in _FORWARDED)


def _has(columns: Columns, file: WholeFile) -> bool:
    """Whether a file has these columns, with the same ids, names and types."""
    there = [(number, field.name, field.type) for number, field in file.columns.items()]
    return all((field_id(field), field.name, field.type) in there for field in columns.stored)


def file_calls(
    columns: Columns, handle: TableHandle, snapshot: Snapshot, parts: Sequence[pa.Table]
) -> list[FunctionCall] | None:
    """The calls with which the client reads the files of each part; None if it would not read what the server does."""
    if len(columns.wanted) or not all(is_direct(each) and not is_nested(each.type) for each in columns.stored):
        return None
    calls = []
    for part in parts:
        files = handle.plain_files(snapshot, part)
        if not files or not all(_has(columns, each) and _PATTERN.isdisjoint(each.path) for each in files):
            return None
        calls.append(FunctionCall("read_parquet", [each.path for each in files], hive_partitioning=False))
    return calls
