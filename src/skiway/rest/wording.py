"""Sentences as clients of Iceberg know them: some of them, and Apache's own tests, look for how these begin.

What to do about it follows, as in all errors of this server.
"""

from __future__ import annotations

from typing import Final

from skiway.errors import SkiwayError

__all__ = ["worded"]

_SENTENCES: Final = {
    "namespace.by.path.missing": "Namespace does not exist: {path} in catalog {catalog}; check the spelling, or create it",
    "table.by.name.missing": "Table does not exist: {path}.{name} in catalog {catalog}; check the spelling, names are "
    "case-sensitive",
    "namespace.already.exists": "Namespace already exists: {name}, perhaps in other case; choose another name, or use "
    "what is there",
    "table.already.exists": "Table already exists: {name}; choose another name, or use what is there",
    "table.created.meanwhile": "Requirement failed: table already exists: {name}; choose another name, or use what is "
    "there",
    "namespace.not_empty": "Namespace {display_name} is not empty, it holds {found}; drop these first",
    "commit.failed": "Requirement failed: {reason}; the table was changed meanwhile: load it again and repeat the change",
}

_REASONS: Final = {
    "Table UUID does not match": "UUID does not match",
    "current schema id has changed": "current schema changed",
    "last assigned field id has changed": "last assigned field id changed",
    "default spec id has changed": "default partition spec changed",
    "last assigned partition id has changed": "last assigned partition id changed",
    "default sort order id has changed": "default sort order changed",
}
"""How requirements fail in PyIceberg, which checks them, and in the words of the specification's own implementation."""


def worded(error: SkiwayError) -> str:
    """What is said of `error` here; its own message where Iceberg has no words for it."""
    template = _SENTENCES.get(error.key)
    if template is None:
        return error.message
    reason = error.params.get("reason", "")
    for found, usual in _REASONS.items():
        reason = reason.replace(found, usual)
    return template.format_map({**error.params, "reason": reason})
