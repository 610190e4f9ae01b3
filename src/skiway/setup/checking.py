"""Checks of a setup that types cannot express: names, references to secrets, durations, and what excludes each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import yaml

from skiway.client.metastore.names import segments
from skiway.config.fields import DURATION
from skiway.errors import InvalidArgument
from skiway.setup.declarations import (
    CHECKS,
    SECTIONS,
    Connector,
    Credentials,
    Object,
    Pipeline,
    Policy,
    Rule,
    SecretRef,
)
from skiway.setup.named import described, missing_reference
from skiway.setup.normal_form import KINDS, normal, normal_item, title
from skiway.setup.reading import InvalidSetup, Loaded, Path, Problem

__all__ = ["checked"]

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
    for name, message in missing_reference(resource, item) if resource else ():
        yield (*path, name), message


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
        reference = getattr(declared, name)
        if isinstance(reference, SecretRef) and bool(reference.env) == bool(reference.file):
            yield (*path, name), f"{name} needs one reference: {{env: NAME}} or {{file: PATH}}"
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
