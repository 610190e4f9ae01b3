"""Reads and checks a setup file. Every mistake is reported with its line.

Messages name keys and expected types. They never quote values, because a value may be a secret in the wrong place.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from skiway.client.metastore.calls import segments
from skiway.config.fields import DURATION
from skiway.errors import InvalidArgument
from skiway.setup import declarations
from skiway.setup.declarations import (
    CHECKS,
    SECTIONS,
    Connector,
    Credentials,
    Declaration,
    Object,
    Pipeline,
    Policy,
    Rule,
    SecretRef,
    Setup,
)
from skiway.setup.forms import KINDS, described, normal, normal_item, title

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
        if wanted is Any:  # the server checks it
            return yaml.SafeLoader("").construct_document(node)
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


SHAPES: Final = {
    "namespace": (2, "lake.sales"),
    "table": (3, "lake.sales.people"),
    "view": (3, "lake.sales.totals"),
}
"""The least number of segments of a full name, and an example."""
FIELDS: Final = {
    "bearer": ("token",),
    "password": ("password",),
    "client": ("endpoint", "client_id", "client_secret"),
    "aws": ("access_key_id", "secret_access_key", "session_token"),
    "cli": ("provider",),
}
OPTIONAL: Final = ("session_token",)
PIPELINE_FILE: Final = "pipeline.yml"

Finding = tuple[Path, str]


def checked(loaded: Loaded) -> Loaded:
    """Return the file with its setup in normal form; raise `InvalidSetup` if something in it cannot be right."""
    findings = [
        finding
        for section in SECTIONS
        for number, item in enumerate(getattr(loaded.setup, section) or ())
        for finding in _CHECKS.get(section, _named_resource)(item, (section, number))
    ]
    findings = findings or list(_duplicates(loaded))
    if findings:
        raise InvalidSetup(loaded.file, [Problem(loaded.line(path), message) for path, message in findings])
    return Loaded(loaded.file, normal(loaded.setup), _lines_by_title(loaded))


def _lines_by_title(loaded: Loaded) -> dict[Path, int]:
    """Lines of the items by section and title: the normal form has another order."""
    lines = dict(loaded.lines)
    for section in SECTIONS:
        for number, item in enumerate(getattr(loaded.setup, section) or ()):
            for path, line in loaded.lines.items():
                if path[:2] == (section, number):
                    lines[(section, title(normal_item(item)), *path[2:])] = line
    return lines


def _duplicates(loaded: Loaded) -> Iterator[Finding]:
    for section in SECTIONS:
        met: dict[str, int] = {}
        for number, item in enumerate(getattr(loaded.setup, section) or ()):
            name = title(normal_item(item))
            if name in met:
                line = loaded.line((section, met[name]))
                yield (section, number), f"{section} has {name} twice, first in line {line}: leave out one"
            met.setdefault(name, number)


def _named_resource(item: Any, path: Path) -> Iterator[Finding]:
    resource = described(item)
    for name in resource.secrets if resource else ():
        yield from _secret(name, getattr(item, name), (*path, name))


def _secret(name: str, reference: SecretRef | None, path: Path) -> Iterator[Finding]:
    if reference is not None and bool(reference.env) == bool(reference.file):
        yield path, f"{name} needs one reference: {{env: NAME}} or {{file: PATH}}"


def _name(text: str, kind: str, path: Path) -> Iterator[Finding]:
    try:
        parts = segments(text, resource=kind)
    except InvalidArgument as error:
        yield path, error.message
        return
    least, example = SHAPES[kind]
    if len(parts) < least:
        yield path, f"{text!r} is not the full name of a {kind}: write it like {example}"


def _named(kind: str) -> Callable[[Any, Path], Iterator[Finding]]:
    def check(item: Any, path: Path) -> Iterator[Finding]:
        return _name(item.name, kind, (*path, "name"))

    return check


def _catalog(item: Any, path: Path) -> Iterator[Finding]:
    if not item.name.strip():
        yield (*path, "name"), "the name of a catalog is blank: give one"


def _path_below(text: str, path: Path) -> Iterator[Finding]:
    """A namespace within a catalog or source."""
    if text:
        try:
            segments(text, resource="namespace")
        except InvalidArgument as error:
            yield path, error.message


def _reference(reference: Object, path: Path) -> Iterator[Finding]:
    given = [kind for kind in KINDS if getattr(reference, kind)]
    if len(given) != 1:
        yield path, "a reference names one object: use one of the keys catalog, namespace, table and view"
        return
    if given[0] != "catalog":
        yield from _name(getattr(reference, given[0]), given[0], (*path, given[0]))


def _connector(item: Connector, path: Path) -> Iterator[Finding]:
    if not item.name.strip():
        yield (*path, "name"), "the name of a connector is blank: give one"
    if not item.uri.strip():
        yield (*path, "uri"), f"the uri of connector {item.name} is blank: give the address of its source"
    yield from _path_below(item.source.namespace, (*path, "source", "namespace"))
    yield from _path_below(item.destination.namespace, (*path, "destination", "namespace"))
    for number, each in enumerate(item.destination.tables):
        yield from _path_below(each.namespace, (*path, "destination", "tables", number, "namespace"))
    if item.schedule.every:
        try:
            DURATION.read(item.schedule.every)
        except ValueError:
            yield (*path, "schedule", "every"), f"every must be {DURATION.takes}"
    if item.schedule.not_before and not _is_time(item.schedule.not_before):
        yield (*path, "schedule", "not_before"), "not_before must be a time with a zone, such as 2026-01-31T08:00:00Z"
    if item.auth.credentials is not None:
        yield from _credentials(item.auth.credentials, (*path, "auth", "credentials"))


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _credentials(declared: Credentials, path: Path) -> Iterator[Finding]:
    given = [name for name in declared.__struct_fields__ if getattr(declared, name)]
    if declared.type is None:
        if given not in (["env"], ["file"]):
            yield path, "credentials need one reference, {env: NAME} or {file: PATH}, or a type with its fields"
        return
    fields = FIELDS[declared.type]
    for name in given:
        if name != "type" and name not in fields:
            yield (*path, name), f"credentials of type {declared.type} have no key {name}: use {', '.join(fields)}"
        if isinstance(reference := getattr(declared, name), SecretRef):
            yield from _secret(name, reference, (*path, name))
    for name in fields:
        if name not in given and name not in OPTIONAL:
            yield path, f"credentials of type {declared.type} lack {name}: add it"


def _view(item: Any, path: Path) -> Iterator[Finding]:
    yield from _name(item.name, "view", (*path, "name"))
    if not item.sql:
        yield (*path, "sql"), f"view {item.name} has no SQL: add a dialect, such as duckdb: SELECT …"
    for number, each in enumerate(item.reads or ()):
        yield from _name(each, "table", (*path, "reads", number))


def _tags(item: Any, path: Path) -> Iterator[Finding]:
    yield from _name(item.table, "table", (*path, "table"))


def _policy(item: Policy, path: Path) -> Iterator[Finding]:
    for number, each in enumerate(item.on):
        yield from _reference(each, (*path, "on", number))
    if bool(item.row_filter) == (item.mask is not None):
        yield path, f"policy {item.name} needs one rule: row_filter or mask"
    if item.mask is not None and (item.mask.kind is not None) == bool(item.mask.sql):
        yield (*path, "mask"), f"the mask of policy {item.name} needs either kind or sql"


def _rule(item: Rule, path: Path) -> Iterator[Finding]:
    yield from _name(item.table, "table", (*path, "table"))
    given = [kind for kind in CHECKS if getattr(item, kind) is not None]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "has no check"
        yield path, f"rule {item.name} {found}: give one of {', '.join(CHECKS)}"
    if item.freshness is not None:
        try:
            DURATION.read(item.freshness.max_age)
        except ValueError:
            yield (*path, "freshness", "max_age"), f"max_age must be {DURATION.takes}"


def _pipeline(item: Pipeline, path: Path) -> Iterator[Finding]:
    head = item.files.get(PIPELINE_FILE)
    if head is None:
        yield (*path, "files"), f"files needs {PIPELINE_FILE}"
        return
    try:
        found = yaml.safe_load(head)
    except yaml.YAMLError:
        yield (*path, "files", PIPELINE_FILE), f"{PIPELINE_FILE} is not valid YAML"
        return
    name = found.get("name") if isinstance(found, dict) else None
    if name != item.name:
        yield (*path, "name"), f"name is {item.name!r}, but {PIPELINE_FILE} has {name!r}: give both the same name"


def _grant(item: Any, path: Path) -> Iterator[Finding]:
    return _reference(item.on, (*path, "on"))


_CHECKS: Final[dict[str, Callable[[Any, Path], Iterator[Finding]]]] = {
    "catalogs": _catalog,
    "namespaces": _named("namespace"),
    "tables": _named("table"),
    "connectors": _connector,
    "views": _view,
    "tags": _tags,
    "policies": _policy,
    "rules": _rule,
    "pipelines": _pipeline,
    "grants": _grant,
}
