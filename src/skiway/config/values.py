"""The kinds of values settings have: how each is read, and the words that tell a person what it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args
from urllib.parse import urlsplit

__all__ = [
    "ADDRESS",
    "COUNT",
    "DURATION",
    "FLAG",
    "MILLIS",
    "PATH",
    "SECONDS",
    "SECRET",
    "TEXT",
    "WEB_URL",
    "Kind",
    "Secret",
    "as_text",
    "choice",
    "is_loopback",
    "number",
    "pairs",
    "pattern",
    "store_url",
    "whole",
]

T = TypeVar("T")

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Secret:
    """A text that shows as `****` wherever it is printed, formatted or logged; `reveal()` gives it away."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Put it into no message."""
        return self._text

    def __eq__(self, other: object) -> bool:
        """The same secret."""
        return isinstance(other, Secret) and compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(Secret)  # settings are hashable, and a hash of the text would be a trace of it

    def __repr__(self) -> str:
        return "****"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a setting takes, in words, and how it is read from TOML or text. `read` raises ValueError for the rest."""

    takes: str
    read: Callable[[object], T]
    secret: bool = False
    path: bool = False


def choice(literal: Any) -> Kind[str]:
    """One of the words of a `Literal`."""
    words = get_args(literal)

    def read(value: object) -> str:
        if value not in words:
            raise ValueError("not one of them")
        return str(value)

    return Kind(f"one of {', '.join(words)}", read)


def whole(*, at_least: int, at_most: int | None = None, of: str = "") -> Kind[int]:
    """A whole number within bounds."""

    def read(value: object) -> int:
        if isinstance(value, bool | float) or not isinstance(value, int | str):
            raise ValueError("no whole number")
        return _within(int(value), at_least, at_most)

    ending = "" if at_most is None else f" and at most {at_most}"
    return Kind(f"a whole number{of}, at least {at_least}{ending}", read)


def number(*, at_least: float = 0, at_most: float | None = None, of: str = "") -> Kind[float]:
    """A number within bounds."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("no number")
        return _within(float(value), at_least, at_most)

    ending = "" if at_most is None else f" and at most {at_most:g}"
    return Kind(f"a number{of}, at least {at_least:g}{ending}", read)


N = TypeVar("N", int, float)


def _within(value: N, at_least: float, at_most: float | None) -> N:
    if not math.isfinite(value) or value < at_least or (at_most is not None and value > at_most):
        raise ValueError("out of bounds")
    return value


def pattern(expression: str, takes: str) -> Kind[str]:
    """Text of a certain form."""

    def read(value: object) -> str:
        text = _text(value)
        if not re.fullmatch(expression, text):
            raise ValueError("of another form")
        return text

    return Kind(takes, read)


def pairs(example: str) -> Kind[tuple[str, ...]]:
    """Names with values, each as `name=value`; as text, separated by semicolons."""

    def read(value: object) -> tuple[str, ...]:
        parts = value if isinstance(value, list) else _text(value).split(";")
        found = tuple(_text(part).strip() for part in parts if part != "")
        if not all(re.fullmatch(r"[^\s=]+=.*", each, re.DOTALL) for each in found):
            raise ValueError("not all are name=value")
        return found

    return Kind(f"names with values, such as {example}", read)


def store_url(example: str) -> Kind[str]:
    """The URL of a store of any scheme; its backend judges the rest."""
    return pattern(r"[a-z][a-z0-9+.-]*:\S*", f"a URL such as {example}")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _text(value).lower()
    if text not in YES + NO:
        raise ValueError("neither")
    return text in YES


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no text")
    return value


def _duration(value: object) -> timedelta:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", _text(value).strip())
    if match is None or not int(match[1]):
        raise ValueError("no duration")
    return timedelta(milliseconds=int(match[1]) * UNITS[match[2]])


def _address(value: object) -> str:
    text = _text(value)
    host, port = _host_and_port(text)
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("no address")
    return text


def _host_and_port(address: str) -> tuple[str, str]:
    """The parts of `host:port`; the brackets of IPv6 are needed, and taken off."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    return ("" if ":" in bare and bare == host else bare), port


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach `host:port`."""
    host, _ = _host_and_port(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _web_url(value: object) -> str:
    text = _text(value)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("no URL")
    return text


TEXT = Kind("text", _text)
FLAG = Kind("true or false", _flag)
COUNT = whole(at_least=1)
MILLIS = whole(at_least=0, of=" of milliseconds")
SECONDS = number(of=" of seconds")
DURATION = Kind("a duration above zero, such as 500ms, 30s, 10m, 1h or 7d", _duration)
ADDRESS = Kind("host:port, such as 127.0.0.1:50051 or [::1]:0", _address)
WEB_URL = Kind("a URL such as https://host/path, without a user or password in it", _web_url)
PATH = Kind("a path", lambda value: Path(_text(value)), path=True)
SECRET = Kind("text, which is never shown", lambda value: Secret(_text(value)), secret=True)


def as_text(value: object) -> str:
    """A setting's value as one would write it; a secret as stars, nothing as an empty text."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return _duration_text(round(value.total_seconds() * 1000))
        case float():
            return f"{value:g}"
        case tuple():
            return "; ".join(map(_pair_text, value))
        case _:
            return str(value)


def _pair_text(pair: str) -> str:
    name, _, _ = pair.partition("=")
    return f"{name}=****" if re.search("secret|password|token|credential|access.?key", name, re.IGNORECASE) else pair


def _duration_text(millis: int) -> str:
    unit = next(unit for unit in reversed(UNITS) if millis % UNITS[unit] == 0)
    return f"{millis // UNITS[unit]}{unit}"
