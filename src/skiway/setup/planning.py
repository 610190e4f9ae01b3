"""Compares a setup with a server: the changes that make the server match, in an order in which they can be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec.structs import replace

from skiway.client.metastore.calls import dotted, segments
from skiway.setup.declarations import (
    DESCRIBED,
    SECTION_OF,
    SECTIONS,
    Account,
    Connector,
    Grant,
    Object,
    Policy,
    Rule,
    Setup,
    Tags,
    View,
)
from skiway.setup.exporting import Actual
from skiway.setup.forms import described, object_kind, object_name, plain, title
from skiway.setup.reading import InvalidSetup, Loaded, Path, Problem

Action = Literal["create", "update", "delete"]

ORDER: Final = (
    "account",
    "catalog",
    "namespace",
    "table",
    "connector",
    "tags",
    "policy",
    "view",
    "rule",
    "pipeline",
    *(resource.name for resource, _ in DESCRIBED.values()),
    "grant",
)
"""Nothing becomes visible before the policies that protect it: tags and policies come before views and grants."""
NEVER_DELETED: Final = ("tables",)
KEPT: Final = {View: ("reads", "columns", "search_path")}
"""The keys that stay as they are on the server if the file leaves them out."""
ADDRESS: Final = ("kind", "uri", "properties", "auth")
"""The keys of a connector that decide where its credentials are sent: if one changes, they are sent again."""
CREDENTIALS: Final = "auth.credentials"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A value that differs: None is a missing one."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object. `waits_for` is a mirrored object that does not exist before a sync: its kind and name."""

    action: Action
    kind: str
    name: str
    fields: tuple[FieldChange, ...] = ()
    desired: Any = None
    line: int = 0
    waits_for: tuple[str, str] | None = None

    @property
    def changed(self) -> frozenset[str]:
        """The keys of the object that differ."""
        return frozenset(each.field.partition(".")[0] for each in self.fields)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets that the change sends."""
        names = _secrets(self.desired) if self.action != "delete" else ()
        given = [name for name in names if getattr(self.desired, name) is not None]
        return tuple(name for name in given if self.action == "create" or name in self.changed)

    @property
    def sends_credentials(self) -> bool:
        """Whether the change sets the credentials of a connector."""
        has_some = isinstance(self.desired, Connector) and self.desired.auth.credentials is not None
        return has_some and (self.action == "create" or any(each.field == CREDENTIALS for each in self.fields))


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes in order, and the objects that the server has in addition and keeps."""

    changes: tuple[Change, ...]
    kept: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is something to change."""
        return bool(self.changes)


def make_plan(loaded: Loaded, actual: Actual, *, delete: bool = False, send_credentials: bool = False) -> Plan:
    """Compare a checked file with a server. With `delete`, objects that are not in the file are deleted.

    `send_credentials` sends the credentials of all connectors and the secrets of all webhooks again: those on the server
    cannot be compared. Those of a connector or webhook whose address changes are always sent.
    """
    problems = [*_problems(loaded, actual), *_missing_secrets(loaded, actual, delete=delete)]
    if problems:
        raise InvalidSetup(loaded.file, problems)
    changes: list[Change] = []
    surplus: list[Change] = []
    for section in ("account", *SECTIONS):
        found = list(_compare(section, loaded, actual, send_credentials=send_credentials, delete=delete))
        changes += [each for each in found if each.action != "delete"]
        surplus += [each for each in found if each.action == "delete"]
    changes.sort(key=lambda each: _rank(each, actual))
    surplus.sort(key=lambda each: (ORDER.index(each.kind), each.name), reverse=True)
    deleted = [each for each in surplus if delete and not _is_needed(each, loaded.setup, actual)]
    return Plan((*changes, *deleted), tuple(each for each in surplus if each not in deleted))


def only(loaded: Loaded, section: str) -> Loaded:
    """The file without other sections. `InvalidSetup` names one that it has."""
    others = [each for each in ("account", *SECTIONS) if each != section and getattr(loaded.setup, each) is not None]
    if others or getattr(loaded.setup, section) is None:
        found = (
            f"has the section {others[0]}, which only skiway setup apply reads"
            if others
            else f"has no section {section}"
        )
        problem = Problem(
            loaded.line((others[0],)) if others else 1, f"the file {found}: give the section {section} alone"
        )
        raise InvalidSetup(loaded.file, [problem])
    return loaded


def _is_needed(change: Change, setup: Setup, actual: Actual) -> bool:
    """Whether a namespace or catalog that the file does not declare contains tables, or something that it declares."""
    if change.kind not in ("catalog", "namespace"):
        return False
    path = (change.name,) if change.kind == "catalog" else segments(change.name, resource="namespace")
    declared = (each.name for section in ("namespaces", "tables", "views") for each in getattr(setup, section) or ())
    tables = (name for kind, name in actual.ids if kind == "table")
    return any(segments(name, resource="object")[: len(path)] == path for name in (*declared, *tables))


def _rank(change: Change, actual: Actual) -> tuple[Any, ...]:
    """The place in the order. A policy on a view that does not exist yet comes after the views."""
    place: float = ORDER.index(change.kind)
    if isinstance(change.desired, Policy):
        views = (each for each in change.desired.on if object_kind(each) == "view")
        if any(("view", object_name(each)) not in actual.ids for each in views):
            place = ORDER.index("view") + 0.5
    depth = len(segments(change.name, resource="namespace")) if change.kind == "namespace" else 0
    return place, depth, change.name


def _compare(section: str, loaded: Loaded, actual: Actual, *, send_credentials: bool, delete: bool) -> Iterator[Change]:
    """The differences of a section, deletions included."""
    wanted = _by_title(loaded.setup, section, actual)
    if wanted is None:
        return
    existing = _by_title(actual.setup, section, actual) or {}
    kind = next((kind for kind, plural in SECTION_OF.items() if plural == section), section)
    for name, desired in wanted.items():
        path: Path = (section, name) if section != "account" else (section,)
        line, before = loaded.line(path), existing.get(name)
        pending = next(_unmirrored(desired, actual, loaded.setup), None)
        if before is None:
            fields = tuple(_differences({}, _shown(desired)))
            yield Change("create", kind, name, fields, desired, line, pending)
            continue
        if isinstance(desired, Rule):
            desired = _with_schema(desired, before)
        kept = {key: getattr(before, key) for key in KEPT.get(type(desired), ()) if getattr(desired, key) is None}
        fields = tuple(_differences({**_shown(before)}, {**_shown(desired), **_plain_keys(kept)}))
        if isinstance(desired, Connector):
            fields = tuple(_credential_fields(fields, desired, actual, again=send_credentials, delete=delete))
        for secret in _secrets(desired):
            if getattr(desired, secret) is not None and (send_credentials or _is_moved(fields, desired)):
                fields = (*fields, FieldChange(secret, "(stored)", plain(getattr(desired, secret))))
        if fields:
            yield Change("update", kind, name, fields, desired, line, pending)
    if section not in NEVER_DELETED:
        for name in existing.keys() - wanted.keys():
            yield Change("delete", kind, name, desired=existing[name])


def _with_schema(desired: Rule, before: Rule) -> Rule:
    """A rule about a schema without columns keeps those that the server has."""
    if desired.schema is None or desired.schema.columns or before.schema is None:
        return desired
    return replace(desired, schema=replace(desired.schema, columns=before.schema.columns))


def _by_title(setup: Setup, section: str, actual: Actual) -> Mapping[str, Any] | None:
    found = getattr(setup, section)
    if isinstance(found, Account):
        return {str(actual.account_id): found}
    return None if found is None else {title(each): each for each in found}


def _shown(item: Any) -> dict[str, Any]:
    """The keys of an object for comparisons, without credentials, which only one side knows."""
    found: dict[str, Any] = plain(item)
    if isinstance(item, Connector) and "auth" in found:
        found["auth"].pop("credentials", None)
    for secret in _secrets(item):
        found.pop(secret, None)
    return found


def _secrets(item: Any) -> tuple[str, ...]:
    """The keys of a declaration of a described kind that are references to secrets."""
    resource = described(item)
    return resource.secrets if resource else ()


def _plain_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in given.items() if value is not None}


def _credential_fields(
    fields: Sequence[FieldChange], desired: Connector, actual: Actual, *, again: bool, delete: bool
) -> Iterator[FieldChange]:
    yield from fields
    has_some = desired.name in actual.with_credentials
    if desired.auth.credentials is not None and (again or not has_some or _is_moved(fields, desired)):
        yield FieldChange(CREDENTIALS, "(stored)" if has_some else None, plain(desired.auth.credentials))
    elif desired.auth.credentials is None and has_some and delete:
        yield FieldChange(CREDENTIALS, "(stored)", None)


def _is_moved(fields: Sequence[FieldChange], item: Any) -> bool:
    """Whether the changes of an object decide where its secret is sent."""
    resource = described(item)
    address = {field.name for field in resource.fields if field.is_address} if resource else ADDRESS
    return any(each.field.partition(".")[0] in address for each in fields)


def _missing_secrets(loaded: Loaded, actual: Actual, *, delete: bool) -> Iterator[Problem]:
    """Yield objects that get another address in the file while the file does not declare their secret."""
    for kind, section in SECTION_OF.items():
        existing = {title(each): each for each in getattr(actual.setup, section) or ()}
        for item in getattr(loaded.setup, section) or ():
            if (before := existing.get(title(item))) is None:
                continue
            fields = list(_differences(_shown(before), _shown(item)))
            for key, advice in _stored_secrets(item, actual, delete=delete) if _is_moved(fields, item) else ():
                yield Problem(
                    loaded.line((section, title(item), key)),
                    f"{kind} {title(item)} gets another {fields[0].field}, and its stored secret is only for the "
                    f"previous one: {advice}",
                )


def _stored_secrets(item: Any, actual: Actual, *, delete: bool) -> Iterator[tuple[str, str]]:
    """The keys of secrets that only the server has, and what to do if they are needed again."""
    has_credentials = isinstance(item, Connector) and item.name in actual.with_credentials and not delete
    if has_credentials and item.auth.credentials is None:
        yield "auth", "declare auth.credentials, or remove the stored ones with --delete"
    for secret in _secrets(item):
        if getattr(item, secret) is None:
            yield secret, f"declare its {secret}"


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[FieldChange]:
    """The values that differ, by dotted key. Lists are compared as a whole."""
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        else:
            yield FieldChange(f"{prefix}{key}", old, new)


# -- references --------------------------------------------------------------------------------------------------------


def _problems(loaded: Loaded, actual: Actual) -> Iterator[Problem]:
    """Mistakes that show only in comparison with the server, with their lines."""
    if loaded.setup.account is not None and actual.account_id is None:
        yield Problem(
            loaded.line(("account",)), "you see several accounts, so give --account, or leave out this section"
        )
    for path, kind, name in _references(loaded.setup):
        if not _exists(loaded.setup, actual, kind, name) and not _may_be_mirrored(loaded.setup, actual, kind, name):
            advice = "declare it in the file, or create it first" if kind != "table" else "create it, or check its name"
            yield Problem(loaded.line(path), f"{kind} {name} does not exist: {advice}")
    existing = {title(each): each for each in actual.setup.tables or ()}
    for table in loaded.setup.tables or ():
        before = existing.get(table.name)
        if before is not None and before != table:
            keys = [each.field for each in _differences(plain(before), plain(table))]
            yield Problem(
                loaded.line(("tables", table.name)),
                f"table {table.name} exists with another {' and '.join(keys)}: setup does not alter tables. "
                "Use ALTER TABLE, or take the table from an export",
            )
        elif before is None and ("table", table.name) in actual.ids:
            yield Problem(
                loaded.line(("tables", table.name)),
                f"table {table.name} is mirrored by a connector: leave it out, or choose another name",
            )


def _references(setup: Setup) -> Iterator[tuple[Path, str, str]]:
    """Every reference in a setup: its path, and the kind and full name of the object."""
    for section in ("namespaces", "tables", "views"):
        for item in getattr(setup, section) or ():
            parts = segments(item.name, resource="object")
            yield (section, item.name, "name"), "catalog", parts[0]
            if section != "namespaces":
                yield (section, item.name, "name"), "namespace", dotted(parts[:-1])
    for connector in setup.connectors or ():
        yield ("connectors", connector.name, "destination", "catalog"), "catalog", connector.destination.catalog
    for section in ("tags", "policies", "rules", "grants"):
        for item in getattr(setup, section) or ():
            key = "table" if isinstance(item, Tags | Rule) else "on"
            for reference in _objects(item):
                yield (section, title(item), key), object_kind(reference), object_name(reference)


def _exists(setup: Setup, actual: Actual, kind: str, name: str) -> bool:
    """Whether an object is on the server or in the file. A namespace exists as soon as one in it does."""
    if (kind, name) in actual.ids:
        return True
    declared = {title(each) for each in getattr(setup, f"{kind}s") or ()}
    return name in declared or (kind == "namespace" and any(each.startswith(f"{name}.") for each in declared))


def _may_be_mirrored(setup: Setup, actual: Actual, kind: str, name: str) -> bool:
    """Whether a connector may create the object when it syncs: it fills the catalog of the object."""
    if kind not in ("table", "namespace"):
        return False
    catalog = segments(name, resource=kind)[0]
    connectors = (*(setup.connectors or ()), *(actual.setup.connectors or ()))
    return any(each.destination.catalog == catalog for each in connectors)


def _unmirrored(item: Any, actual: Actual, setup: Setup) -> Iterator[tuple[str, str]]:
    """The mirrored objects that a declaration refers to and that do not exist yet."""
    for reference in _objects(item):
        kind, name = object_kind(reference), object_name(reference)
        if kind in ("table", "namespace") and not _exists(setup, actual, kind, name):
            yield kind, name


def _objects(item: Any) -> Sequence[Object]:
    if isinstance(item, Policy):
        return item.on
    if isinstance(item, Tags | Rule):
        return (Object(table=item.table),)
    return (item.on,) if isinstance(item, Grant) else ()
