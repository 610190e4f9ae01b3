"""System objects of an engine: its functions, operators, types, casts, collations and aggregates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, MutableSequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeAlias, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from skiway.errors import Internal, InvalidArgument
from skiway.foundation.cache import Cache
from skiway.metastore.records.errors import failure
from skiway.model import v1

VersionKey: TypeAlias = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]

CORE = re.compile(r"[0-9]+(?:\.[0-9]+)*")
TOKENS = re.compile(r"[0-9]+|[^0-9.\-_+\s]+")


def version_key(version: str) -> VersionKey:
    """The sort key of a version. A leading `v` is ignored.

    >>> sorted(["1.10", "1.9", "1.9-rc2", "1.9-rc10", "1.9-1", ""], key=version_key)
    ['', '1.9-1', '1.9-rc2', '1.9-rc10', '1.9', '1.10']
    """
    text = re.sub(r"^[vV](?=[0-9])", "", version.strip())
    core = CORE.match(text)
    numbers = [int(number) for number in core.group().split(".")] if core else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    tokens = tuple(map(_token, TOKENS.findall(text[core.end() if core else 0 :])))
    return tuple(numbers), not tokens, tokens


def applies(rule: v1.EngineSpecific, kind: str, version: VersionKey) -> bool:
    """Whether a rule, read from the file of this kind of engine, applies to this version."""
    if (rule.engine_kind or kind).strip().lower() != kind:
        return False
    if rule.HasField("min_version") and version < version_key(rule.min_version):
        return False
    return not (rule.HasField("max_version") and version > version_key(rule.max_version))


def applicable(rules: Iterable[v1.EngineSpecific], kind: str, version: VersionKey) -> list[v1.EngineSpecific]:
    """The rules that apply; of several with the same payload type, the last."""
    last = {rule.payload_type: rule for rule in rules if applies(rule, kind, version)}
    return list(last.values())


def _token(text: str) -> tuple[bool, int, str]:
    """The sort key of a token: numbers sort before words, and words are compared case-insensitively."""
    number = text.isascii() and text.isdecimal()
    return (False, int(text), "") if number else (True, 0, text.casefold())


# --- validation -------------------------------------------------------------------------------------------------------


SystemObject: TypeAlias = v1.SqlFunction | v1.SqlOperator | v1.SqlType | v1.SqlCast | v1.SqlCollation | v1.SqlAggregate


def objects(registry: v1.SystemObjectsRegistry) -> Iterable[SystemObject]:
    """All objects of all six classes."""
    return chain(
        registry.functions, registry.operators, registry.types, registry.casts, registry.collations, registry.aggregates
    )


def signature(of: SystemObject) -> str:
    """The text that identifies an object, for example `function main.sum(INTEGER)`."""
    match of:
        case v1.SqlFunction():
            arguments = [*of.argument_types, *([f"{of.variadic_type}..."] if of.variadic_type else [])]
            sort = "table function" if of.is_table else "function"
            return f"{sort} {of.namespace}.{of.name}({', '.join(arguments)})"
        case v1.SqlOperator():
            return f"operator {' '.join(filter(None, (of.left_type, of.name, of.right_type)))}"
        case v1.SqlType():
            return f"type {of.namespace}.{of.name}"
        case v1.SqlCast():
            return f"cast {of.name or '?'} from {of.source_type} to {of.target_type}"
        case v1.SqlCollation():
            return f"collation {of.name}"
        case v1.SqlAggregate():
            return f"aggregate {of.name}({', '.join(of.argument_types)})"


def check(registry: v1.SystemObjectsRegistry) -> list[str]:
    """All faults, each as a sentence that names the object; empty for a valid registry."""
    return list(_faults(registry))


def _faults(registry: v1.SystemObjectsRegistry) -> Iterator[str]:
    types = {kind.name for kind in registry.types}
    namespaces = set(registry.namespaces)
    for name, number in Counter(map(signature, objects(registry))).items():
        if number > 1:
            yield f"{name} occurs {number} times"
    for each in objects(registry):
        for fault in chain(_common(each), _own(each, types, namespaces), _rules(each.engine_specific)):
            yield f"{signature(each)} {fault}"
    for fault in _rules(registry.engine_specific):
        yield f"the registry {fault}"


def _common(of: SystemObject) -> Iterator[str]:
    if not of.name.strip():
        yield "has no name"
    if of.origin == v1.OO_UNSPECIFIED:
        yield "has no origin"


def _own(of: SystemObject, types: set[str], namespaces: set[str]) -> Iterator[str]:
    """The faults that are specific to the class of the object."""
    if isinstance(of, v1.SqlFunction | v1.SqlType) and of.namespace not in namespaces:
        yield f"is in the namespace {of.namespace or '(none)'}, which is not in the list of namespaces"
    match of:
        case v1.SqlFunction() if not of.return_type and not of.is_table:
            yield "has no return_type"
        case v1.SqlOperator() | v1.SqlAggregate() if not of.return_type:
            yield "has no return_type"
        case v1.SqlOperator() if not (of.left_type or of.right_type):
            yield "has no operand"
        case v1.SqlType() if of.is_array != bool(of.element_type):
            yield "is an array without element_type" if of.is_array else "has an element_type but is no array"
        case v1.SqlCast() if not (of.source_type and of.target_type):
            yield "lacks its source_type or target_type"
        case v1.SqlCast() if of.method == v1.CM_UNSPECIFIED:
            yield "has no method"
    for used in sorted(set(filter(None, _types(of))) - types):
        yield f"uses the type {used}, which is not in the list of types"


def _types(of: SystemObject) -> tuple[str, ...]:
    match of:
        case v1.SqlFunction():
            return *of.argument_types, of.variadic_type, of.return_type
        case v1.SqlOperator():
            return of.left_type, of.right_type, of.return_type
        case v1.SqlType():
            return (of.element_type,)
        case v1.SqlCast():
            return of.source_type, of.target_type
        case v1.SqlAggregate():
            return *of.argument_types, of.return_type, of.state_type
        case v1.SqlCollation():
            return ()


def _rules(rules: Iterable[v1.EngineSpecific]) -> Iterator[str]:
    windows = Counter(map(_window, rules))
    if any(number > 1 for number in windows.values()):
        yield "has two rules with the same payload_type, engine_kind and versions"
    for rule in rules:
        bounded = rule.HasField("min_version") and rule.HasField("max_version")
        if bounded and version_key(rule.min_version) > version_key(rule.max_version):
            yield f"has a rule from version {rule.min_version} down to {rule.max_version}"


def _window(rule: v1.EngineSpecific) -> tuple[object, ...]:
    bounds = (
        version_key(getattr(rule, field)) if rule.HasField(field) else None for field in ("min_version", "max_version")
    )
    return rule.payload_type, rule.engine_kind, *bounds


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
