"""How resources are named: dotted text, a sequence of segments, or an id.

"lake.sales.people"              catalog, namespaces, table
'lake."eu.west".people'          a segment in double quotes may hold dots; "" in it is one quote
("lake", "eu.west", "people")    segments one by one, taken as they are
Id("7f3c…")                      an id, which stays when the resource is renamed
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from skiway.errors import InvalidArgument

__all__ = ["Id", "Name", "dotted", "segments"]

Name = str | Sequence[str]

_SEGMENT: Final = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^."]*))\s*(?P<end>\.|$)')
_PLAIN: Final = re.compile(r'[^\s."]+(?: [^\s."]+)*')


class Id(str):
    """An id of a resource, as text. Where a name can be given, an `Id` can, and is not taken for a name."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Id({super().__repr__()})"


def segments(name: Name, *, resource: str) -> tuple[str, ...]:
    r"""The parts of a name, none of them blank; `resource` is what it should name.

    >>> segments('lake."eu.west".people', resource="table")
    ('lake', 'eu.west', 'people')
    """
    parts = _split(name, resource) if isinstance(name, str) else _texts(name, resource)
    if not parts or not all(part.strip() for part in parts):
        raise InvalidArgument(
            f"{name!r} cannot name a {resource}, a segment is blank: leave it out, or name it",
            key="path.segment.blank",
            field="name",
        )
    return parts


def dotted(path: Sequence[str]) -> str:
    """A path as text that `segments` reads back, quoted where it must be.

    >>> dotted(("lake", "eu.west", "people"))
    'lake."eu.west".people'
    """
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in path)


def _split(text: str, resource: str) -> tuple[str, ...]:
    parts: list[str] = []
    position, more = 0, True
    while more:
        found = _SEGMENT.match(text, position)
        if found is None:
            raise InvalidArgument(
                f"{text!r} cannot be read as the name of a {resource}: put a segment with dots or quotes in it "
                'wholly in double quotes, and write a quote inside as ""',
                key="name.malformed",
                field="name",
            )
        quoted = found["quoted"]
        parts.append(found["plain"].strip() if quoted is None else quoted.replace('""', '"'))
        position, more = found.end(), found["end"] == "."
    return tuple(parts)


def _texts(parts: Sequence[str], resource: str) -> tuple[str, ...]:
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InvalidArgument(
            f"{parts!r} does not name a {resource}: give dotted text, a sequence of texts, an Id, or the {resource} itself",
            key="field",
            field="name",
        )
    return tuple(parts)


# --------------------
# From whatever names a resource to its id.
