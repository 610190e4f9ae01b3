"""System objects of an engine: its functions, operators, types, casts, collations and aggregates.

They are defined in one file per kind of engine, `duckdb.pbtxt` or in binary `duckdb.pb`. An engine sends its kind and
version with every call. Objects without a rule exist in every version, others where one of their rules applies. An
engine without a file has no objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TypeAlias, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from skiway.cache import Cache
from skiway.errors import Internal, InvalidArgument
from skiway.metastore.records.errors import failure
from skiway.metastore.system.validation import SystemObject, VersionKey, applicable, check, version_key
from skiway.model import v1

__all__ = ["SHIPPED", "Definitions", "EngineCatalogs", "Stamp", "SystemFiles", "get", "read"]

MAX_VERSION = 100
SHOWN_FAULTS = 10
SHIPPED = Path(str(files("skiway.metastore.system") / "builtins"))
"""The directory of the files that come with Skiway."""

SUFFIXES = (".pb", ".pbtxt")
# No separators, no NUL, no leading dot: a kind can only name a file in the directory.
KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

Stamp: TypeAlias = tuple[str, int, int, int]
O = TypeVar("O", bound=SystemObject)  # noqa: E741


@dataclass(frozen=True, slots=True)
class Definitions:
    """The content of a file, and a stamp that changes when the file does. It is shared: do not modify it."""

    registry: v1.SystemObjectsRegistry
    stamp: Stamp | None = None


@dataclass(frozen=True, slots=True)
class SystemFiles:
    """The definition files in a directory. Each is read when it is first needed, and again after it has changed."""

    directory: Path = SHIPPED
    _loaded: dict[str, Definitions] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def kinds(self) -> list[str]:
        """The kinds of engines that have a file."""
        try:
            found = [file.stem for file in self.directory.iterdir() if file.suffix in SUFFIXES]
        except OSError as error:
            fault = f"cannot list the directory: {(error.strerror or str(error)).lower()}"
            raise failure(Internal, "system.file.invalid", file=str(self.directory), fault=fault) from error
        return sorted({name for name in found if KIND.fullmatch(name)})

    def load(self, kind: str) -> Definitions:
        """The definitions for a kind of engine; empty if it has no file."""
        file = self._file(kind)
        if file is None:
            return Definitions(v1.SystemObjectsRegistry())
        stamp = _stamp(file)
        with self._lock:  # reading takes a while, so concurrent callers wait for the first
            loaded = self._loaded.get(kind)
            if loaded is None or loaded.stamp != stamp:
                loaded = self._loaded[kind] = Definitions(read(file), stamp)
            return loaded

    def _file(self, kind: str) -> Path | None:
        if not KIND.fullmatch(kind):
            wanted = "use letters and digits and, not first, any of ._- (for example duckdb)"
            raise failure(InvalidArgument, "field.invalid", field="engine_kind", found=repr(kind[:64]), wanted=wanted)
        found = [file for suffix in SUFFIXES if (file := self.directory / f"{kind}{suffix}").is_file()]
        if len(found) > 1:
            fault = f"{found[1].name} exists too: keep only one of them"
            raise failure(Internal, "system.file.invalid", file=str(found[0]), fault=fault)
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class EngineCatalogs:
    """Responses for engines, made from the definition files. The last `max_kept` are cached."""

    files: SystemFiles = field(default_factory=SystemFiles)
    max_kept: int = 16
    _responses: Cache[tuple[str, Stamp | None, VersionKey], v1.GetSystemObjectsResponse] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_responses", Cache(self.max_kept))

    def answer(self, kind: str, version: VersionKey) -> v1.GetSystemObjectsResponse:
        """The objects of an engine. Equal versions share one response until the file changes."""
        definitions = self.files.load(kind)
        return self._responses.get(
            (kind, definitions.stamp, version),
            lambda: v1.GetSystemObjectsResponse(registry=_filtered(definitions.registry, kind, version)),
        )


def get(catalogs: EngineCatalogs, engine_kind: str, engine_version: str) -> v1.GetSystemObjectsResponse:
    """The objects of the engine that the request headers name. Callers share the response: do not modify it."""
    kind, version = engine_kind.strip().lower(), engine_version.strip()
    if not kind:
        raise failure(InvalidArgument, "builtin.engine.kind.required", header="x-engine-kind")
    if not version:
        raise failure(InvalidArgument, "builtin.engine.version.required", header="x-engine-version")
    if len(version) > MAX_VERSION:
        found = f"{len(version)} characters long"
        wanted = f"send the engine's version, at most {MAX_VERSION} characters"
        raise failure(InvalidArgument, "field.invalid", field="engine_version", found=found, wanted=wanted)
    return catalogs.answer(kind, version_key(version))


def read(file: Path) -> v1.SystemObjectsRegistry:
    """Read and validate a definition file."""
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
    status = file.stat()
    return file.name, status.st_mtime_ns, status.st_size, status.st_ino


def _filtered(registry: v1.SystemObjectsRegistry, kind: str, version: VersionKey) -> v1.SystemObjectsRegistry:
    filtered = v1.SystemObjectsRegistry()
    for field_ in ("functions", "operators", "types", "casts", "collations", "aggregates"):
        _copy_applicable(getattr(registry, field_), getattr(filtered, field_), kind, version)
    filtered.engine_specific.extend(applicable(registry.engine_specific, kind, version))
    return filtered


def _copy_applicable(source: Iterable[O], target: MutableSequence[O], kind: str, version: VersionKey) -> None:
    """Copy the objects that exist in this version, with the rules that apply."""
    for each in source:
        rules = applicable(each.engine_specific, kind, version)
        if rules or not each.engine_specific:
            target.append(each)
            del target[-1].engine_specific[:]
            target[-1].engine_specific.extend(rules)
