"""Which objects match a text, and which match best.

Words are looked for in the path, the columns, the comment and the tags of an object. The index has these as one text in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from skiway.model import v1

__all__ = ["PART", "Document", "IndexedDocument", "Tags", "column_comments", "match", "words_of"]

WEIGHTS: Final = {"name": 100.0, "tag": 50.0, "column": 40.0, "comment": 20.0}
KINDS: Final[dict[int, int]] = {v1.RK_TABLE: 3, v1.RK_VIEW: 2, v1.RK_NAMESPACE: 1, v1.RK_CATALOG: 1}
MAX_WORDS: Final = 20
PART, COLUMN = "\x1e", "\x1f"
"""They separate the parts of a text, and its columns. Words contain neither, because both count as white space."""

Tags = tuple[tuple[str, str], ...]
"""Columns of a table, each with one of its tags."""


@dataclass(frozen=True, slots=True)
class Document:
    """The texts of an object in which words are looked for. `path` has dots, and ends with the name."""

    kind: int
    path: str
    name: str
    columns: Sequence[str] = ()
    comment: str = ""

    @classmethod
    def at(cls, kind: int, path: tuple[str, ...], columns: Sequence[str] = (), comment: str = "") -> Document:
        """The document of an object with this path."""
        return cls(kind, ".".join(path), path[-1], columns, comment)

    def text(self) -> str:
        """All texts in lower case."""
        return PART.join((_plain(self.path), COLUMN.join(map(_plain, self.columns)), _plain(self.comment))).lower()


class IndexedDocument:
    """The document in lower case that has a text. The text is taken apart only as far as that is needed."""

    __slots__ = ("_text", "kind", "name")

    def __init__(self, kind: int, name: str, text: str) -> None:
        self.kind, self.name, self._text = kind, name.lower(), text

    @property
    def path(self) -> str:
        """The path with dots."""
        return self._text[: self._text.index(PART)]

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns."""
        columns = self._text.split(PART)[1]
        return columns.split(COLUMN) if columns else ()

    @property
    def comment(self) -> str:
        """The comment."""
        return self._text[self._text.rindex(PART) + 1 :]


def words_of(text: str) -> list[str]:
    """The words of a text that somebody searches for."""
    return list(dict.fromkeys(text.lower().split()))[:MAX_WORDS]


def match(document: Document | IndexedDocument, words: Sequence[str], tags: Tags = ()) -> tuple[float, str] | None:
    """The score of a document, and where its words were found; None if it does not contain all of them."""
    name, path = document.name.lower(), document.path.lower()
    score, places = 0.0, []
    for word in words:
        best, where = 0.0, ""
        if word in path:
            best, where = WEIGHTS["name"] * _closeness(word, name, path), "name"
        for column, tag in tags:
            value = WEIGHTS["tag"] * _closeness(word, tag, tag) if word in tag else 0.0
            if value > best:
                best, where = value, f"tag {tag} of column {column}"
        if best < WEIGHTS["column"]:
            for column in document.columns:
                lower = column.lower()
                value = WEIGHTS["column"] * _closeness(word, lower, lower) if word in lower else 0.0
                if value > best:
                    best, where = value, f"column {column}"
        if not best and word in document.comment.lower():
            best, where = WEIGHTS["comment"], "comment"
        if not best:
            return None
        score += best
        places.append(where)
    return score + KINDS.get(document.kind, 0), next((each for each in places if each != "name"), "name")


def _closeness(word: str, name: str, path: str) -> float:
    if name == word or path == word:
        return 1.0
    if name.startswith(word):
        return 0.8 + 0.1 * len(word) / max(len(name), 1)
    return 0.6 if word in name else 0.4


def _plain(text: str) -> str:
    return text.replace(PART, " ").replace(COLUMN, " ")


# --- columns ----------------------------------------------------------------------------------------------------------


class _Column(msgspec.Struct):
    name: str
    doc: object = None


class _Schema(msgspec.Struct):
    fields: tuple[_Column, ...] = ()


_SCHEMA: Final = msgspec.json.Decoder(_Schema)
"""Reads only the names and comments of columns, which takes a tenth of the time: there may be many tables."""


def column_comments(schema_json: str) -> dict[str, str]:
    """The comment of each column by its name; none if the schema is not one of a table."""
    try:
        fields: Iterable[_Column] = _SCHEMA.decode(schema_json or "{}").fields
    except msgspec.DecodeError:
        return {}
    return {each.name: each.doc if isinstance(each.doc, str) else "" for each in fields}
