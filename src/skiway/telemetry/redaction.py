"""What must not be read in a log, taken out of it.

Two nets: values under names that say "secret", and texts that look like one. Whoever holds a secret wraps it (`Secret`,
`Redacted`), so that it shows as stars wherever it is printed; this is for what was not wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

__all__ = ["MASK", "is_secret_name", "redacted", "redacted_text"]

MASK = "****"

_WORDS = r"password|passwd|passphrase|secret|token|authorization|api[-_]?key|access[-_]?key|private[-_]?key|credential|cookie"
_NAME = re.compile(_WORDS, re.IGNORECASE)
# Names that hold such a word and no secret.
_HARMLESS = re.compile(
    r"(page|next|lease|fencing|continuation)_?token|tokens?_(count|file|type|url)|secret_(name|id)", re.IGNORECASE
)

_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[^\s,;\"']+", re.IGNORECASE)
_USER_INFO = re.compile(r"(://[^\s:/?#@]*):[^\s/]*@")
_JWT = re.compile(r"\beyJ[\w-]{4,}\.[\w-]+\.[\w-]*")
_ASSIGNED = re.compile(
    rf"""(?<![\w.-])(?P<name>[\w.-]{{0,64}}?(?:{_WORDS})[\w.-]{{0,64}})(?P<is>["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;&)}}\]"']+)""",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is a secret."""
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)


def redacted_text(text: str) -> str:
    """The text with what looks like a secret as stars: `password=...`, bearer tokens, passwords in URLs."""
    text = _SCHEME.sub(rf"\1 {MASK}", _JWT.sub(MASK, text))
    if "://" in text:
        text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    return _ASSIGNED.sub(_masked, text) if _NAME.search(text) else text


def _masked(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or match["value"].lower() in ("bearer", "basic", "none", "null"):
        return match[0]
    return f"{match['name']}{match['is']}{MASK}"


def redacted(value: object, *, name: str = "") -> object:
    """The value as JSON can say it, without secrets: by their names, at any depth, and by their look."""
    if name and is_secret_name(name) and value not in (None, "") and not isinstance(value, bool):
        return MASK
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): redacted(each, name=str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: redacted(getattr(value, each.name), name=each.name) for each in fields(value) if each.repr}
    return redacted_text(str(value))
