"""Errors with their sentences from one file per language, so that they can be told in another.

The file has a table per code and an entry per key. `{name}` stands for a parameter. An entry that begins with `*`
speaks for all kinds of resources: `*.already.exists` is found for `catalog.already.exists`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import TypeVar

from skiway.errors import SkiwayError

__all__ = ["failure", "sentence", "sentences"]

E = TypeVar("E", bound=SkiwayError)


def failure(error: type[E], key: str, **params: str) -> E:
    """An error of this class whose sentence is the one written down for its code and key."""
    return error(sentence(error.code, key, params), key=key, **params)


def sentence(code: str, key: str, params: Mapping[str, str], *, language: str = "en") -> str:
    """What to say about `key`; in English where the language has no words for it."""
    for known in (sentences(language), sentences("en")):
        template = _template(known.get(code, {}), key)
        if template is not None:
            return template.format_map(params)
    return key


def _template(entries: Mapping[str, str], key: str) -> str | None:
    """The entry for `key` itself, or else the one for all keys with the same ending: the longest that is known."""
    words = key.split(".")
    endings = (".".join(("*", *words[first:])) for first in range(1, len(words) + 1))
    return next((entries[name] for name in (key, *endings) if name in entries), None)


@lru_cache(maxsize=64)  # languages are named by callers
def sentences(language: str) -> Mapping[str, Mapping[str, str]]:
    """Templates by code and key; empty for a language without a file."""
    if not language.isalpha():
        return {}
    file = files("skiway.metastore.records") / "messages" / f"{language.lower()}.toml"
    return tomllib.loads(file.read_text()) if file.is_file() else {}
