"""Policies: which rows of tables and views callers see, and what of their columns; and the tags of columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import Final

from skiway.foundation import resources
from skiway.metastore.records import keys
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.kinds import COLUMN_TAGS, POLICY, TABLE
from skiway.metastore.records.names import MAX_NAME
from skiway.metastore.records.policies import EVERYONE, Subject, column_matches, current_columns
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import listed
from skiway.metastore.records.updates import retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import named_object
from skiway.metastore.resources.named import NamedCalls
from skiway.model import v1
from skiway.sandbox.queries import Queries
from skiway.storage import Check

MAX_ITEMS: Final = 1000
MAX_SQL: Final = 10_000
SUBJECT: Final = re.compile(r"(user|group|role):[^\x00-\x1f\x7f]+")
TAG: Final = re.compile(r"[a-z0-9][a-z0-9_.:-]{0,62}")

Relation = v1.Table | v1.View
Compile = Callable[[v1.Policy, Sequence[Relation]], Sequence[str]]
"""Returns the columns that the expressions of a policy read; `InvalidArgument` if one is not valid.

The tables and views are those that the policy names, over whose columns the expressions must be valid.
"""


def calls(compile_: Compile) -> NamedCalls[v1.Policy]:
    """The calls for policies. They hold from the next call on."""

    def check(realm: Realm, policy: v1.Policy, spec: v1.PolicySpec, paths: Set[str]) -> None:  # noqa: ARG001
        _check(realm, policy, compile_)

    return NamedCalls(resources.POLICY, POLICY, check)


def scan(realm: Realm) -> Iterator[v1.Policy]:
    """All policies of the account, by name. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(POLICY).entries(keys.policy_name(realm.account_id)))


# --- tags of columns --------------------------------------------------------------------------------------------------


def list_tags(realm: Realm, request: v1.ListColumnTagsRequest) -> v1.ListColumnTagsResponse:
    """List the tags of all existing tables that have some, with the present names of the columns."""
    found, page = listed(realm.all(COLUMN_TAGS), keys.column_tags(realm.account_id), request.page)
    tables = realm.all(TABLE)
    shown = []
    for each in found:
        table = tables.find(keys.table(realm.account_id, each.table_id.id)) if each.columns else None
        if table is not None:
            shown.append(_with_current_names(each, table.value))
    return v1.ListColumnTagsResponse(tags=shown, page=page)


def get_tags(realm: Realm, request: v1.GetColumnTagsRequest) -> v1.GetColumnTagsResponse:
    """Return the tags of a table's columns, with the present names of the columns."""
    table = hierarchy.table(realm, request.table_id).value
    found = realm.all(COLUMN_TAGS).find(keys.column_tags(realm.account_id, table.resource_id.id))
    tags = v1.ColumnTags(table_id=table.resource_id) if found is None else found.value
    return v1.GetColumnTagsResponse(tags=_with_current_names(tags, table))


def _with_current_names(tags: v1.ColumnTags, table: v1.Table) -> v1.ColumnTags:
    now = {number: name for name, number in current_columns(table).items()}
    for column in tags.columns:
        column.name = now.get(column.column_id, column.name)
    return tags


def set_tags(realm: Realm, request: v1.SetColumnTagsRequest) -> v1.SetColumnTagsResponse:
    """Replace the tags of a column. They stay with the column when it is renamed."""
    wanted = _tags(request.tags)

    def attempt() -> v1.SetColumnTagsResponse:
        table = hierarchy.table(realm, request.table_id)
        name, number = _column(table.value, request.column)
        repository = realm.all(COLUMN_TAGS)
        tags = v1.ColumnTags(table_id=table.value.resource_id, updated_at=realm.now())
        current = repository.find(COLUMN_TAGS.key(tags))
        tags.columns.extend(each for each in (current.value.columns if current else ()) if each.column_id != number)
        if wanted:
            tags.columns.append(v1.TaggedColumn(column_id=number, name=name, tags=wanted))
        tags.columns.sort(key=lambda each: each.column_id)

        unchanged = Check(table.pointer.key, expect=table.pointer.version)
        what = f"the tags of table {table.value.display_name}"
        stored = repository.save(current, tags, what=what, also=lambda _: [unchanged])
        return v1.SetColumnTagsResponse(tags=stored.value, meta=stored.meta)

    return retrying(attempt)


def _column(table: v1.Table, given: str) -> tuple[str, int]:
    columns = current_columns(table)
    for name, number in columns.items():
        if name.casefold() == given.casefold():
            return name, number
    found = f"{given[:100]!r}, which table {table.display_name} does not have"
    raise invalid_field("column", found, f"choose from {', '.join(columns)}")


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(realm: Realm, policy: v1.Policy, compile_: Compile) -> None:
    """Raise unless the policy can be applied. Names become what is stored."""
    _replace(policy.subjects, _subjects(policy.subjects, field="subjects", everyone=True))
    if not policy.subjects:
        raise invalid_field("subjects", "empty", "name callers, such as role:analyst, or everyone")
    _replace(policy.exceptions, _subjects(policy.exceptions, field="exceptions", everyone=False))
    tags = _tags(policy.tags)
    _replace(policy.tags, tags)
    relations = _objects(realm, policy)
    match policy.WhichOneof("rule"):
        case "row_filter":
            _check_filter(policy)
        case "mask":
            _check_mask(policy, relations)
        case _:
            raise invalid_field("rule", "missing", "give a row filter or a mask")
    read = compile_(policy, relations)
    for on in relations:
        columns = {name.casefold() for name in current_columns(on)}
        lost = [name for name in read if name.casefold() not in columns]
        if columns and lost:
            raise invalid_field("rule", f"an expression over {lost[0]!r}", f"{on.display_name} has no such column")


def _check_filter(policy: v1.Policy) -> None:
    predicate = policy.row_filter.predicate
    if not predicate.strip() or len(predicate) > MAX_SQL:
        found = "blank" if not predicate.strip() else f"{len(predicate)} characters long"
        raise invalid_field(
            "row_filter.predicate", found, f"give SQL of up to {MAX_SQL} characters, such as region = 'EU'"
        )
    if not (policy.objects or policy.tags):
        raise invalid_field(
            "objects", "empty", "a row filter needs objects or tags: its columns must exist in all tables"
        )


def _check_mask(policy: v1.Policy, relations: Sequence[Relation]) -> None:
    mask = policy.mask
    if mask.kind not in (v1.MK_NULL, v1.MK_HASH, v1.MK_PARTIAL, v1.MK_EXPRESSION):
        raise invalid_field("mask.kind", str(mask.kind), "choose MK_NULL, MK_HASH, MK_PARTIAL or MK_EXPRESSION")
    if (mask.kind == v1.MK_EXPRESSION) != bool(mask.expression.strip()) or len(mask.expression) > MAX_SQL:
        found = f"{len(mask.expression)} characters long"
        raise invalid_field("mask.expression", found, f"give up to {MAX_SQL} characters with MK_EXPRESSION, else none")
    if not (mask.columns or policy.tags) or len(mask.columns) > MAX_ITEMS:
        raise invalid_field("mask.columns", f"a list of {len(mask.columns)}", "name columns or tags")
    for pattern in mask.columns:
        if not pattern.strip() or len(pattern) > MAX_NAME:
            raise invalid_field(
                "mask.columns", repr(pattern[:100]), "give the name of a column, in which * is any text"
            )
        for on in relations:
            columns = current_columns(on)
            if columns and not any(column_matches([pattern], column) for column in columns):
                wanted = f"{on.display_name} has {', '.join(list(columns)[:50])}"
                raise invalid_field("mask.columns", f"{pattern!r}, which matches no column", wanted)


def _subjects(given: Sequence[str], *, field: str, everyone: bool) -> list[str]:
    if len(given) > MAX_ITEMS:
        raise invalid_field(
            field, f"a list of {len(given)}", f"give up to {MAX_ITEMS}; groups and roles have many members"
        )
    for each in given:
        if not (everyone and each == EVERYONE) and (not SUBJECT.fullmatch(each) or len(each) > MAX_NAME):
            known = "user:<subject>, group:<name> or role:<name>"
            raise invalid_field(field, repr(each[:100]), f"give {known}{', or everyone' if everyone else ''}")
    return sorted({each.lower() if each.startswith("role:") else each for each in given})


def _tags(given: Sequence[str]) -> list[str]:
    named = sorted({each.strip().lower() for each in given})
    for each in named:
        if not TAG.fullmatch(each):
            raise invalid_field("tags", repr(each[:100]), "a tag has up to 63 letters, digits and _.:-, such as pii")
    if len(named) > MAX_ITEMS:
        raise invalid_field("tags", f"a list of {len(named)}", f"give up to {MAX_ITEMS}")
    return named


def _objects(realm: Realm, policy: v1.Policy) -> list[Relation]:
    """Check that all objects exist, complete their ids, and return the tables and views among them."""
    if len(policy.objects) > MAX_ITEMS:
        raise invalid_field(
            "objects", f"a list of {len(policy.objects)}", f"give up to {MAX_ITEMS}; namespaces have many tables"
        )
    relations: list[Relation] = []
    for given in policy.objects:
        found = named_object(realm, given, field="objects")
        if isinstance(found, Relation):
            relations.append(found)
        given.CopyFrom(found.resource_id)
    return relations


def _replace(field: object, values: Iterable[str]) -> None:
    del field[:]  # type: ignore[attr-defined]
    field.extend(values)  # type: ignore[attr-defined]


class SandboxedExpressions:
    """Compiles the expressions of a policy. The process for that is started when it is first needed."""

    def __call__(self, policy: v1.Policy, relations: Sequence[Relation]) -> Sequence[str]:  # noqa: ARG002
        """The columns that the policy reads; `InvalidArgument` if an expression is not valid."""
        text = policy.row_filter.predicate if policy.HasField("row_filter") else policy.mask.expression
        if not text:
            return []
        process = self._queries.start()
        try:
            (expression,) = process.expressions([text], Subject().values)
            return expression.columns
        finally:
            process.close()

    @cached_property
    def _queries(self) -> Queries:
        return Queries(memory_limit="256MB", timeout_s=30.0, workers=2, threads=1)
