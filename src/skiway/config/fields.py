"""Declare settings: sections, the settings in them, and the kinds of values they accept.

A section is a frozen dataclass. Each field is either another section or a setting, declared with `setting(default, kind,
description)`. A `Kind` parses a value from TOML or from text and describes what it accepts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, dataclass_transform, get_args
from urllib.parse import urlsplit

from skiway.foundation.clock import DURATION_SYNTAX, duration_text, parse_duration

PREFIX = "SKIWAY__"
"""The prefix of environment variables that hold settings."""

MASK = "****"
"""The text that replaces a secret wherever one would be printed."""

C = TypeVar("C")
T = TypeVar("T")

# Sections


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is the default as text, or empty if there is none.

    `without_effect` says why the setting is accepted but ignored; it is empty for a setting that works. `replaced_by`
    says what to set instead of an old setting that still works.
    """

    key: str
    kind: Kind[Any]
    default: str
    description: str
    under_home: str
    without_effect: str
    replaced_by: str = ""

    @property
    def takes(self) -> str:
        """A description of the accepted values."""
        return self.kind.takes

    @property
    def environment(self) -> str:
        """The environment variable for this setting."""
        return PREFIX + self.key.replace(".", "__").upper()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(cls: type[C]) -> type[C]:
    """Declare a section: an immutable group of settings and subsections, all with defaults."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def setting(
    default: T,
    kind: Kind[Any],
    description: str,
    *,
    under_home: str = "",
    without_effect: str = "",
    replaced_by: str = "",
) -> T:
    """Declare a setting in a section.

    `under_home` makes its default a path in the home directory, once that is known. `without_effect` marks a setting that
    is accepted for compatibility and ignored, and gives the reason; `replaced_by` one that still works, with its successor.
    """
    facts = {
        "kind": kind,
        "description": description,
        "under_home": under_home,
        "without_effect": without_effect,
        "replaced_by": replaced_by,
    }
    return field(default=default, metadata=facts)


def settings_of(cls: type, prefix: str = "") -> Iterator[Setting]:
    """The settings of a section and its subsections."""
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
    description, reason = facts["description"], facts["without_effect"]
    if reason:
        description = f"{description} Accepted, but without effect: {reason}."
    if successor := facts["replaced_by"]:
        description = f"{description} Replaced by `{successor}`, but still accepted."
    return Setting(key, facts["kind"], default, description, facts["under_home"], reason, successor)


def build(cls: type[C], values: Mapping[str, object], prefix: str = "") -> C:
    """Build a section from `values` by key; settings without a value keep their defaults."""
    given: dict[str, Any] = {}
    for each in fields(cast(Any, cls)):
        key = prefix + each.name
        if _is_section(each):
            given[each.name] = build(type(each.default), values, f"{key}.")
        elif key in values:
            given[each.name] = values[key]
    return cls(**given)


def values_of(part: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every key of a section with its value."""
    for each in fields(part):
        key, value = prefix + each.name, getattr(part, each.name)
        if _is_section(each):
            yield from values_of(value, f"{key}.")
        else:
            yield key, value


# Kinds of values

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Secret:
    """A secret text. Printing, formatting or logging it shows `****`; `reveal()` returns the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Never put it into a message."""
        return self._text

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        return isinstance(other, Secret) and compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(Secret)  # settings must be hashable, and a hash of the text would leak information about it

    def __repr__(self) -> str:
        return MASK


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of value: `takes` describes it, `read` parses it from TOML or text and raises ValueError if it is invalid."""

    takes: str
    read: Callable[[object], T]
    secret: bool = False
    path: bool = False


def choice(literal: Any) -> Kind[str]:
    """One of the values of a `Literal`."""
    words = get_args(literal)

    def read(value: object) -> str:
        if value not in words:
            raise ValueError("not one of the choices")
        return str(value)

    return Kind(f"one of {', '.join(words)}", read)


def whole(*, at_least: int, at_most: int | None = None, of: str = "") -> Kind[int]:
    """A whole number within bounds."""

    def read(value: object) -> int:
        if isinstance(value, bool | float) or not isinstance(value, int | str):
            raise ValueError("not a whole number")
        return _within(int(value), at_least, at_most)

    ending = "" if at_most is None else f" and at most {at_most}"
    return Kind(f"a whole number{of}, at least {at_least}{ending}", read)


def number(*, at_least: float = 0, at_most: float | None = None, of: str = "") -> Kind[float]:
    """A number within bounds."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("not a number")
        return _within(float(value), at_least, at_most)

    ending = "" if at_most is None else f" and at most {at_most:g}"
    return Kind(f"a number{of}, at least {at_least:g}{ending}", read)


N = TypeVar("N", int, float)


def _within(value: N, at_least: float, at_most: float | None) -> N:
    if not math.isfinite(value) or value < at_least or (at_most is not None and value > at_most):
        raise ValueError("out of bounds")
    return value


def pattern(expression: str, takes: str) -> Kind[str]:
    """Text that matches a regular expression."""

    def read(value: object) -> str:
        text = _text(value)
        if not re.fullmatch(expression, text):
            raise ValueError("does not match")
        return text

    return Kind(takes, read)


def pairs(example: str) -> Kind[tuple[str, ...]]:
    """A list of `name=value` pairs; as text, separated by semicolons."""

    def read(value: object) -> tuple[str, ...]:
        parts = value if isinstance(value, list) else _text(value).split(";")
        found = tuple(_text(part).strip() for part in parts if part != "")
        if not all(re.fullmatch(r"[^\s=]+=.*", each, re.DOTALL) for each in found):
            raise ValueError("not a list of name=value pairs")
        return found

    return Kind(f"name=value pairs, such as {example}", read)


def listed(takes: str, check: Callable[[str], object]) -> Kind[tuple[str, ...]]:
    """A list of texts, each of which `check` accepts; as text, separated by semicolons. It may be empty."""

    def read(value: object) -> tuple[str, ...]:
        parts = value if isinstance(value, list) else str(value).split(";")
        found = tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())
        if len(found) < len([part for part in parts if part != ""]):
            raise ValueError("not a list of texts")
        for each in found:
            check(each)
        return found

    return Kind(takes, read)


def store_url(example: str) -> Kind[str]:
    """The URL of a store. Any scheme is accepted here; the store checks the rest."""
    return pattern(r"[a-z][a-z0-9+.-]*:\S*", f"a URL such as {example}")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _text(value).lower()
    if text not in YES + NO:
        raise ValueError("neither true nor false")
    return text in YES


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("not text")
    return value


def _address(value: object) -> str:
    text = _text(value)
    host, port = _host_and_port(text)
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("not an address")
    return text


def _host_and_port(address: str) -> tuple[str, str]:
    """Split `host:port`. An IPv6 host must be in brackets, which are removed."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    return ("" if ":" in bare and bare == host else bare), port


def is_loopback(address: str) -> bool:
    """Whether `host:port` is reachable from this machine only."""
    host, _ = _host_and_port(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _web_url(value: object) -> str:
    text = _text(value)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("not a URL")
    return text


TEXT = Kind("text", _text)
FLAG = Kind("true or false", _flag)
COUNT = whole(at_least=1)
MILLIS = whole(at_least=0, of=" of milliseconds")
SECONDS = number(of=" of seconds")
DURATION = Kind(DURATION_SYNTAX, parse_duration)
ADDRESS = Kind("host:port, such as 127.0.0.1:50051 or [::1]:0", _address)
WEB_URL = Kind("a URL such as https://host/path, without a user or password in it", _web_url)
PATH = Kind("a path", lambda value: Path(_text(value)), path=True)
SECRET = Kind("text, which is never shown", lambda value: Secret(_text(value)), secret=True)


def as_text(value: object) -> str:
    """A value in the syntax that sets it; a secret is masked, None is empty."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return duration_text(value)
        case float():
            return f"{value:g}"
        case tuple():
            return "; ".join(map(_pair_text, value))
        case _:
            return str(value)


def _pair_text(pair: str) -> str:
    name, _, _ = pair.partition("=")
    return f"{name}={MASK}" if re.search("secret|password|token|credential|access.?key", name, re.IGNORECASE) else pair
