"""Errors whose messages come from one file per language, so that they can be translated.

A file has a table per error code and an entry per key. `{name}` stands for a parameter. An entry that starts with `*`
applies to all kinds of resources: `*.already.exists` is used for `catalog.already.exists`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import TypeVar

from skiway.errors import InvalidArgument, SkiwayError

E = TypeVar("E", bound=SkiwayError)


def failure(error: type[E], key: str, **params: str) -> E:
    """Create an error of this class with the message for its code and key."""
    return error(sentence(error.code, key, params), key=key, **params)


def invalid_field(field: str, found: str, wanted: str) -> InvalidArgument:
    """The error of a field with a value that cannot be used: what was found, and what to give instead."""
    return failure(InvalidArgument, "field.invalid", field=field, found=found, wanted=wanted)


def sentence(code: str, key: str, params: Mapping[str, str], *, language: str = "en") -> str:
    """The message for `key`; in English if the language has none."""
    for known in (sentences(language), sentences("en")):
        template = _template(known.get(code, {}), key)
        if template is not None:
            return template.format_map(params)
    return key


def _template(entries: Mapping[str, str], key: str) -> str | None:
    """The entry for `key` itself, or the entry with the longest matching ending."""
    words = key.split(".")
    endings = (".".join(("*", *words[first:])) for first in range(1, len(words) + 1))
    return next((entries[name] for name in (key, *endings) if name in entries), None)


@lru_cache(maxsize=64)  # clients choose the language
def sentences(language: str) -> Mapping[str, Mapping[str, str]]:
    """The message templates of a language by code and key; empty if it has no file."""
    if not language.isalpha():
        return {}
    file = files("skiway.metastore.records") / "messages" / f"{language.lower()}.toml"
    return tomllib.loads(file.read_text()) if file.is_file() else {}
