"""How a section declares a setting, and what a person needs to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, cast, dataclass_transform

from skiway.config.values import Kind, as_text

__all__ = ["PREFIX", "Setting", "build", "section", "setting", "settings_of", "values_of"]

PREFIX = "SKIWAY__"

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is the text one would write, or empty where there is none."""

    key: str
    kind: Kind[Any]
    default: str
    description: str
    under_home: str

    @property
    def takes(self) -> str:
        """What it may be, in words."""
        return self.kind.takes

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.key.replace(".", "__").upper()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(cls: type[C]) -> type[C]:
    """A group of settings and of other groups, each with a default; it never changes."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def setting(default: T, kind: Kind[Any], description: str, *, under_home: str = "") -> T:
    """A setting in a section. With `under_home`, its default is a place in the home directory, once there is one."""
    facts = {"kind": kind, "description": description, "under_home": under_home}
    return field(default=default, metadata=facts)


def settings_of(cls: type, prefix: str = "") -> Iterator[Setting]:
    """The settings of a section and of the sections in it."""
    for each in fields(cls):
        key = prefix + each.name
        if _is_section(each):
            yield from settings_of(type(each.default), f"{key}.")
        else:
            yield _described(key, each)


def _is_section(each: Field[Any]) -> bool:
    return "kind" not in each.metadata and each.default is not MISSING


def _described(key: str, each: Field[Any]) -> Setting:
    facts = each.metadata
    default = f"<home>/{facts['under_home']}" if facts["under_home"] else as_text(each.default)
    return Setting(key, facts["kind"], default, facts["description"], facts["under_home"])


def build(cls: type[C], values: Mapping[str, object], prefix: str = "") -> C:
    """A section with the values that are set, by key, and the defaults for the others."""
    given: dict[str, Any] = {}
    for each in fields(cast(Any, cls)):
        key = prefix + each.name
        if _is_section(each):
            given[each.name] = build(type(each.default), values, f"{key}.")
        elif key in values:
            given[each.name] = values[key]
    return cls(**given)


def values_of(part: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every key in a section, with its value."""
    for each in fields(part):
        key, value = prefix + each.name, getattr(part, each.name)
        if _is_section(each):
            yield from values_of(value, f"{key}.")
        else:
            yield key, value
