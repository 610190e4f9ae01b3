"""What a disk contains after a power failure, computed from the recorded changes of a server.

`recorder.c` records all changes of files. A power failure keeps what was synced: the contents of a file that were written before
a sync of the file began, and the entries of a folder that were made before a sync of the folder began. Of everything else,
any part may be missing. File systems keep more than that; Skiway must not rely on it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_HEADER = struct.Struct("=QQqQQ")
Keeps = Callable[[], bool]
"""Decides whether a change that was not synced is on disk nevertheless."""


def compiled(folder: Path) -> Path:
    """The recorder, as a library to preload."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler; on Debian: apt install gcc libc6-dev")
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@dataclass(frozen=True, slots=True)
class Record:
    """One change. `position` is the size of the log after it."""

    operation: str
    inode: int
    offset: int
    first: bytes
    second: bytes
    position: int


class Log:
    """The changes of a folder that was empty at first."""

    def __init__(self, file: Path) -> None:
        data = file.read_bytes()
        self.records = list(_records(data))
        self._positions = [each.position for each in self.records]

    def until(self, position: int) -> list[Record]:
        """The changes that were recorded when the log had this size."""
        return self.records[: bisect_right(self._positions, position)]

    def synced(self, ending: str) -> list[int]:
        """The moments when a sync of a file with this ending was over."""
        inodes = {
            record.inode
            for record in self.records
            if record.operation == "C" and str(_path(record.first)).endswith(ending)
        }
        return [record.position for record in self.records if record.operation == "E" and record.inode in inodes]


def _records(data: bytes) -> Iterator[Record]:
    start = 0
    while start + _HEADER.size <= len(data):
        operation, inode, offset, first, second = _HEADER.unpack_from(data, start)
        texts = start + _HEADER.size
        start = texts + first + second
        if start <= len(data):
            yield Record(chr(operation), inode, offset, data[texts : texts + first], data[texts + first : start], start)


@dataclass(frozen=True, slots=True)
class _Change:
    """Bytes written at an offset, a new size, or an entry of a folder that was `added`, `removed` or renamed (`name` to `new`)."""

    operation: str
    offset: int = 0
    data: bytes = b""
    name: str = ""
    new: str = ""
    node: _Node | None = None


@dataclass
class _Node:
    """A file or folder: its changes in order, how many of them are synced, and how many a running sync covers."""

    is_folder: bool
    changes: list[_Change] = field(default_factory=list)
    synced: int = 0
    syncs: dict[int, int] = field(default_factory=dict)

    def kept(self, keeps: Keeps) -> Iterator[_Change]:
        """The changes that are on disk after a power failure."""
        for number, change in enumerate(self.changes):
            if number < self.synced or keeps():
                yield change

    def entries(self, keeps: Keeps) -> dict[str, _Node]:
        found: dict[str, _Node] = {}
        for change in self.kept(keeps):
            if change.operation != "added":
                found.pop(change.name, None)
            if change.node is not None:
                found[change.new] = change.node
        return found

    def contents(self, keeps: Keeps) -> bytes:
        data = bytearray()
        for change in self.kept(keeps):
            data.extend(bytes(max(0, change.offset - len(data))))
            if change.operation == "written":
                data[change.offset : change.offset + len(change.data)] = change.data
            else:
                del data[change.offset :]
        return bytes(data)

    def write(self, path: Path, keeps: Keeps) -> None:
        """Write what is on disk after a power failure to `path`."""
        if self.is_folder:
            path.mkdir(mode=0o700, exist_ok=True)
            for name, child in self.entries(keeps).items():
                child.write(path / name, keeps)
        else:
            path.touch(mode=0o600)
            path.write_bytes(self.contents(keeps))


class Disk:
    """The files of a folder, replayed from their changes. `inode` is that of the folder.

    Syncs of what `is_unsynced`, given the path and whether it is a folder, are left out, as if the program had forgotten them.
    """

    def __init__(self, root: Path, inode: int, *, is_unsynced: Callable[[Path, bool], bool] = lambda *_: False) -> None:
        self._is_unsynced = is_unsynced
        self.root = _Node(is_folder=True)
        self._by_inode = {inode: self.root}
        self._by_path = {root: self.root}

    def replay(self, records: list[Record]) -> None:
        for each in records:
            self._apply(each)

    def _apply(self, record: Record) -> None:
        match record.operation:
            case "C" | "D":
                self._by_inode[record.inode] = _Node(record.operation == "D")
                self._add(_path(record.first), self._by_inode[record.inode])
            case "L":
                self._add(_path(record.second), self._by_inode[record.inode])
            case "R":
                self._rename(_path(record.first), _path(record.second))
            case "U":
                self._remove(_path(record.first))
            case "W":
                self._by_inode[record.inode].changes.append(_Change("written", record.offset, record.first))
            case "T":
                self._by_inode[record.inode].changes.append(_Change("resized", record.offset))
            case "S":
                node = self._by_inode[record.inode]
                is_lost = any(
                    found is node and self._is_unsynced(path, node.is_folder) for path, found in self._by_path.items()
                )
                node.syncs[record.offset] = 0 if is_lost else len(node.changes)
            case "E":
                node = self._by_inode[record.inode]
                node.synced = max(node.synced, node.syncs.pop(record.offset))

    def _add(self, path: Path, node: _Node) -> None:
        self._by_path[path.parent].changes.append(_Change("added", new=path.name, node=node))
        self._by_path[path] = node

    def _remove(self, path: Path) -> None:
        self._by_path[path.parent].changes.append(_Change("removed", name=path.name))
        del self._by_path[path]

    def _rename(self, old: Path, new: Path) -> None:
        node = self._by_path[old]
        if node.is_folder:
            raise NotImplementedError(f"the replay of a renamed folder: {old} is now {new}")
        if old.parent == new.parent:  # one change of one folder
            self._by_path[old.parent].changes.append(_Change("renamed", name=old.name, new=new.name, node=node))
            self._by_path[new] = self._by_path.pop(old)
        else:
            self._add(new, node)
            self._remove(old)


def _path(data: bytes) -> Path:
    return Path(os.path.normpath(os.fsdecode(data)))


def snapshot_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder, without the shared memory of SQLite, which the next process creates again."""
    files = (each for each in folder.rglob("*") if each.is_file() and not each.name.endswith("-shm"))
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}
