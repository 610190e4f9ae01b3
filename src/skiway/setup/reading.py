"""Reads a setup file: YAML, checked against the declarations. Every mistake is reported with its line.

Messages name keys and expected types. They never quote values, because a value may be a secret in the wrong place.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from skiway.errors import InvalidArgument
from skiway.setup import declarations
from skiway.setup.declarations import Declaration, Setup

__all__ = ["InvalidSetup", "Loaded", "Path", "Problem", "read"]

Path = tuple[str | int, ...]
"""Keys and positions from the top of the file to a value."""

MAX_DEPTH: Final = 40
TAG: Final = "tag:yaml.org,2002:"
WORDS: Final = {
    f"{TAG}null": "nothing",
    f"{TAG}bool": "true or false",
    f"{TAG}int": "a number",
    f"{TAG}float": "a number",
}
DECIMAL: Final = re.compile(r"\d+(\.\d+)?")
UNIONS: Final = (Union, types.UnionType)


class Problem(NamedTuple):
    """A mistake in the file, with its line."""

    line: int
    message: str


class InvalidSetup(InvalidArgument):
    """A setup file with mistakes, one line of the message for each."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems)
        lines = (f"{file}, line {line}: {message}" for line, message in self.problems)
        super().__init__("\n".join(lines), key="setup.invalid")


@dataclass(frozen=True)
class Loaded:
    """A file as it was read. `lines` are the lines of its keys and items."""

    file: str
    setup: Setup
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """The line of a value, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(text: str, file: str = "setup") -> Loaded:
    """Read the text of a file. `InvalidSetup` lists all mistakes."""
    reader = _Reader()
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InvalidSetup(file, [_syntax_problem(error)]) from None
    if len(documents) != 1 or documents[0] is None:
        found = "nothing" if not documents or documents[0] is None else f"{len(documents)} documents"
        raise InvalidSetup(file, [Problem(1, f"expected one YAML document, found {found}: begin with version: 1")])
    setup = reader.value(documents[0], Setup, ())
    if reader.problems or not isinstance(setup, Setup):
        raise InvalidSetup(file, reader.problems)
    return Loaded(file, setup, reader.lines)


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    return Problem(mark.line + 1 if mark else 1, f"this is not valid YAML: {what}")


@dataclass
class _Reader:
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)

    def value(self, node: Any, wanted: Any, path: Path) -> Any:
        """The value of a node, which must have the type `wanted`; None after a mistake."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) > MAX_DEPTH:
            return self._fail(node, path, f"is nested more than {MAX_DEPTH} levels deep")
        if not node.tag.startswith(TAG):
            return self._fail(node, path, f"has the tag {node.tag}: leave it out")
        options = [each for each in get_args(wanted) if each is not type(None)] if get_origin(wanted) in UNIONS else []
        if len(options) > 1:
            wanted = self._option(node, options)
        elif options:
            wanted = options[0]
        if node.tag == f"{TAG}null" and node.value not in get_args(wanted):  # `null` is a kind of mask
            return self._fail(node, path, "has no value: give one, or leave out the key")
        origin = get_origin(wanted)
        if origin is tuple:
            return self._items(node, get_args(wanted)[0], path)
        if origin is dict:
            return self._mapping(node, get_args(wanted)[1], path)
        if isinstance(wanted, type) and issubclass(wanted, Declaration):
            return self._declaration(node, wanted, path)
        return self._scalar(node, wanted, path)

    def _option(self, node: Any, options: Sequence[Any]) -> Any:
        """The type of a union that a node has: the key `type` of a mapping tells which."""
        if not isinstance(node, yaml.MappingNode):
            return str
        given = {key.value: each.value for key, each in node.value if isinstance(each, yaml.ScalarNode)}.get("type")
        tagged = {each.__struct_config__.tag: each for each in options if each is not str}
        return tagged.get(given, declarations.StructType)

    def _scalar(self, node: Any, wanted: Any, path: Path) -> Any:
        text = node.value if isinstance(node, yaml.ScalarNode) else None
        if get_origin(wanted) is Literal:
            choices = {str(each): each for each in get_args(wanted)}
            if text in choices:
                return choices[text]
            return self._fail(node, path, f"must be {_or(list(choices))}")
        if text is None:
            found = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
            return self._fail(node, path, f"must be {_title(wanted)}, but is {found}")
        if wanted is bool and node.tag == f"{TAG}bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if wanted is int and node.tag == f"{TAG}int" and text.isdecimal():
            return int(text)
        if wanted is float and node.tag in (f"{TAG}int", f"{TAG}float") and DECIMAL.fullmatch(text):
            return float(text)
        # Words such as `on` and times are text: only numbers, true and false have to be quoted.
        is_number = node.tag in (f"{TAG}int", f"{TAG}float") or text.lower() in ("true", "false")
        if wanted is str and (node.style or not is_number):
            return text
        hint = ": put it in quotes" if wanted is str else ""
        return self._fail(node, path, f"must be {_title(wanted)}, but is {WORDS.get(node.tag, 'text')}{hint}")

    def _items(self, node: Any, wanted: Any, path: Path) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            return self._fail(node, path, "must be a list: begin each item with a dash")
        return tuple(self.value(each, wanted, (*path, number)) for number, each in enumerate(node.value))

    def _mapping(self, node: Any, wanted: Any, path: Path) -> Any:
        return {key: self.value(each, wanted, (*path, key)) for key, _, each in self._entries(node, path)}

    def _declaration(self, node: Any, wanted: type[Declaration], path: Path) -> Any:
        if wanted is declarations.SecretRef and not isinstance(node, yaml.MappingNode):
            return self._fail(
                node, path, "must be a reference such as {env: NAME} or {file: PATH}, not the secret itself"
            )
        hints = get_type_hints(wanted)
        tag_field = wanted.__struct_config__.tag_field
        given: dict[str, Any] = {}
        is_misspelled = not isinstance(node, yaml.MappingNode)
        for key, key_node, each in self._entries(node, path):
            if key in hints:
                given[key] = self.value(each, hints[key], (*path, key))
            elif key != tag_field:
                is_misspelled = True
                self._unknown_key(key_node, key, hints, path)
        missing = [each.name for each in msgspec.structs.fields(wanted) if each.required and each.name not in given]
        for name in () if is_misspelled else missing:
            self._fail(node, path, f"lacks the key {name}: add it")
        return None if missing or None in given.values() else wanted(**given)

    def _entries(self, node: Any, path: Path) -> Iterator[tuple[str, Any, Any]]:
        """The keys of a mapping, their nodes, and the nodes of the values."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, path, "must be a mapping: write key: value")
            return
        met = set[str]()
        for key_node, each in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._fail(key_node, path, "has a key that is not text")
                continue
            key = key_node.value
            if key in met:
                self._fail(key_node, path, f"has the key {key!r} twice: leave out one")
                continue
            met.add(key)
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            yield key, key_node, each

    def _unknown_key(self, node: Any, key: str, known: Mapping[str, Any], path: Path) -> None:
        similar = get_close_matches(key, known, n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"use {_or(list(known))}"
        self._fail(node, path, f"has no key {key!r}: {hint}")

    def _fail(self, node: Any, path: Path, message: str) -> None:
        self.problems.append(Problem(node.start_mark.line + 1, f"{_where(path)} {message}"))


def _where(path: Path) -> str:
    """A place in the file for messages: `connectors[0].uri`."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    return text.lstrip(".") or "the file"


def _title(wanted: Any) -> str:
    return {str: "text", bool: "true or false", int: "a whole number, 0 or more", float: "a number, 0 or more"}.get(
        wanted, "a value"
    )


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
