"""The files that say what engines bring along: one per kind of engine, as `duckdb.pbtxt` or, in binary, `duckdb.pb`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from skiway.errors import Internal, InvalidArgument
from skiway.metastore.records.errors import failure
from skiway.metastore.system.validation import check
from skiway.model import v1

__all__ = ["SHIPPED", "Definitions", "Stamp", "SystemFiles", "read"]

SHIPPED = Path(str(files("skiway.metastore.system") / "builtins"))
"""The files that come with Skiway."""

SUFFIXES = (".pb", ".pbtxt")
# No separators, no NUL, nothing that begins with a dot: a kind can only name a file of the directory.
KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SHOWN_FAULTS = 10

Stamp: TypeAlias = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Definitions:
    """The content of a file, and what tells this state of the file from later ones. Shared: not to be changed."""

    registry: v1.SystemObjectsRegistry
    stamp: Stamp | None = None


@dataclass(frozen=True, slots=True)
class SystemFiles:
    """The files of a directory, each read when it is first asked for, and again when it has changed."""

    directory: Path = SHIPPED
    _read: dict[str, Definitions] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def kinds(self) -> list[str]:
        """The kinds of engines there are files for."""
        found = (file.stem for file in self.directory.iterdir() if file.suffix in SUFFIXES)
        return sorted({name for name in found if KIND.fullmatch(name)})

    def load(self, kind: str) -> Definitions:
        """What the file of this kind says; nothing, if there is none."""
        file = self._file(kind)
        if file is None:
            return Definitions(v1.SystemObjectsRegistry())
        stamp = _stamp(file)
        with self._lock:  # reading takes a while: once is enough, also for those who come together
            known = self._read.get(kind)
            if known is None or known.stamp != stamp:
                known = self._read[kind] = Definitions(read(file), stamp)
            return known

    def _file(self, kind: str) -> Path | None:
        if not KIND.fullmatch(kind):
            wanted = "use letters, digits, and ._- after the first of them, such as duckdb"
            raise failure(InvalidArgument, "field.invalid", field="engine_kind", found=repr(kind[:64]), wanted=wanted)
        found = [file for suffix in SUFFIXES if (file := self.directory / f"{kind}{suffix}").is_file()]
        if len(found) > 1:
            fault = f"{found[1].name} is there too: keep one of the two"
            raise failure(Internal, "system.file.invalid", file=str(found[0]), fault=fault)
        return found[0] if found else None


def read(file: Path) -> v1.SystemObjectsRegistry:
    """The content of a file, which must be sound."""
    registry = v1.SystemObjectsRegistry()
    try:
        if file.suffix == ".pb":
            registry.MergeFromString(file.read_bytes())
        else:
            text_format.Parse(file.read_text(encoding="utf-8"), registry)
    except (OSError, UnicodeDecodeError, DecodeError, text_format.ParseError) as error:
        raise failure(Internal, "system.file.invalid", file=str(file), fault=str(error)) from error
    faults = check(registry)
    if faults:
        more = f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
        fault = "; ".join(faults[:SHOWN_FAULTS]) + more
        raise failure(Internal, "system.file.invalid", file=str(file), fault=fault)
    return registry


def _stamp(file: Path) -> Stamp:
    now = file.stat()
    return file.name, now.st_mtime_ns, now.st_size, now.st_ino
