"""What an engine brings along: functions, operators, types, casts, collations and aggregates, for its kind and version.

The engine tells its kind and version with every call. Objects that carry no rule are there for every version; the others
where one of their rules holds. An engine that nobody has described has nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass, field
from typing import TypeVar

from skiway.cache import Cache
from skiway.errors import InvalidArgument
from skiway.metastore.records.errors import failure
from skiway.metastore.system.files import Stamp, SystemFiles
from skiway.metastore.system.validation import SystemObject, VersionKey, holding, version_key
from skiway.model import v1

__all__ = ["EngineCatalogs", "get"]

MAX_VERSION = 100

O = TypeVar("O", bound=SystemObject)  # noqa: E741


@dataclass(frozen=True, slots=True)
class EngineCatalogs:
    """The files of definitions, and the answers that were made from them last, at most `max_kept`."""

    files: SystemFiles = field(default_factory=SystemFiles)
    max_kept: int = 16
    _answers: Cache[tuple[str, Stamp | None, VersionKey], v1.GetSystemObjectsResponse] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_answers", Cache(self.max_kept))

    def answer(self, kind: str, version: VersionKey) -> v1.GetSystemObjectsResponse:
        """What there is for an engine; equal versions share one answer, until the file changes."""
        definitions = self.files.load(kind)
        return self._answers.get(
            (kind, definitions.stamp, version),
            lambda: v1.GetSystemObjectsResponse(registry=_filtered(definitions.registry, kind, version)),
        )


def get(catalogs: EngineCatalogs, engine_kind: str, engine_version: str) -> v1.GetSystemObjectsResponse:
    """The objects of an engine, as its headers tell of it. The answer is shared by all callers: not to be changed."""
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


def _filtered(registry: v1.SystemObjectsRegistry, kind: str, version: VersionKey) -> v1.SystemObjectsRegistry:
    answer = v1.SystemObjectsRegistry()
    for field_ in ("functions", "operators", "types", "casts", "collations", "aggregates"):
        _take(getattr(registry, field_), getattr(answer, field_), kind, version)
    answer.engine_specific.extend(holding(registry.engine_specific, kind, version))
    return answer


def _take(source: Iterable[O], target: MutableSequence[O], kind: str, version: VersionKey) -> None:
    """Copy the objects that are there, with the rules that hold."""
    for each in source:
        rules = holding(each.engine_specific, kind, version)
        if rules or not each.engine_specific:
            target.append(each)
            del target[-1].engine_specific[:]
            target[-1].engine_specific.extend(rules)
