"""The order of engines' versions, and the windows of versions in which something is so.

A version is a core of numbers and perhaps a pre-release: what follows a dash, or the first character that fits neither.
`1.2` and `1.2.0` are the same, `1.2.0-rc1` comes before both, and a blank version is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from skiway.model import v1

__all__ = ["VersionKey", "holding", "holds", "version_key"]

VersionKey: TypeAlias = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]

CORE = re.compile(r"[0-9]+(?:\.[0-9]+)*")
TOKENS = re.compile(r"[0-9]+|[^0-9.\-_+\s]+")


def version_key(version: str) -> VersionKey:
    """What versions are sorted by. Engines that write `v1.2` mean `1.2`.

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


def holds(rule: v1.EngineSpecific, kind: str, version: VersionKey) -> bool:
    """Whether a rule, read from the file of this kind of engine, speaks of it in this version."""
    if (rule.engine_kind or kind).strip().lower() != kind:
        return False
    if rule.HasField("min_version") and version < version_key(rule.min_version):
        return False
    return not (rule.HasField("max_version") and version > version_key(rule.max_version))


def holding(rules: Iterable[v1.EngineSpecific], kind: str, version: VersionKey) -> list[v1.EngineSpecific]:
    """The rules that hold, the last one for each type of payload."""
    last = {rule.payload_type: rule for rule in rules if holds(rule, kind, version)}
    return list(last.values())


def _token(text: str) -> tuple[bool, int, str]:
    """Numbers come before words; words are compared without regard to case."""
    number = text.isascii() and text.isdecimal()
    return (False, int(text), "") if number else (True, 0, text.casefold())
