"""The policies that restrict one caller: resolved once per call, and part of the call's realm.

A policy removes rows of tables and views, or replaces values of their columns, for the callers that it names.

All row filters hold at once. If several masks match a column, the strictest kind wins: NULL, hash, partial, expression.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, Final

from skiway.errors import PermissionDenied
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import COLUMN_TAGS, NAMESPACE, POLICY, TABLE
from skiway.metastore.records.repository import Repository, Stored
from skiway.model import v1
from skiway.security.authentication import Claim
from skiway.storage import Stores

EVERYONE: Final = "everyone"
NO_FILES: Final = "its files and statistics are not available: read it through Airport, for example with DuckDB"
NOT_CHANGED: Final = "this change is not possible: ask a caller without this policy"
CHANGED_SINCE: Final = "it was created or changed after this transaction has changed rows: begin again"

_COMPUTED: Final = (v1.MK_HASH, v1.MK_EXPRESSION)
"""Masks that show something computed from a value: with values of its choice, a caller could find the others by comparison."""

_STRICTEST_FIRST: Final = (v1.MK_NULL, v1.MK_HASH, v1.MK_PARTIAL, v1.MK_EXPRESSION)


@dataclass(frozen=True, slots=True)
class Subject:
    """A caller, as policies know it. `claims` are those of its token; `caller('…')` returns one of them."""

    name: str = ""
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    claims: Mapping[str, Claim] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The names under which policies may restrict it, or make an exception for it."""
        roles, groups = (f"role:{each}" for each in self.roles), (f"group:{each}" for each in self.groups)
        return frozenset((f"user:{self.name}", *roles, *groups))

    @property
    def values(self) -> Mapping[str, Claim]:
        """What `caller('…')` returns: the claims of the token; the subject, its roles and its groups take precedence."""
        return {
            **self.claims,
            "subject": self.name,
            "roles": sorted(self.roles),
            "groups": sorted(self.groups),
        }


@dataclass(frozen=True, slots=True)
class Restriction:
    """What policies leave of one table or view.

    `columns` are the ids of its present columns by name, and `masked_ids` those of masked columns, also of dropped ones.
    `masks` are the policies that mask columns by name.
    """

    name: str
    filters: tuple[v1.Policy, ...]
    masks: tuple[v1.Policy, ...]
    columns: Mapping[str, int] = field(default_factory=dict)
    masked_ids: Mapping[int, v1.Policy] = field(default_factory=dict)
    missing: str = ""
    """What keeps the policies from being applied; then no rows can be read."""

    @property
    def policies(self) -> Sequence[str]:
        """The names of the policies."""
        all_of_them = (*self.filters, *self.masks, *self.masked_ids.values())
        return sorted({each.display_name or each.resource_id.id for each in all_of_them})

    @property
    def digest(self) -> str:
        """A text that differs if a policy is created, changed or deleted, or another column is masked."""
        found = [*self.filters, *self.masks, *(self.masked_ids[field_id] for field_id in sorted(self.masked_ids))]
        parts = [each.SerializeToString(deterministic=True) for each in found]
        return sha256(
            b"".join([b"%d:" % len(part) + part for part in parts]) + repr(sorted(self.masked_ids)).encode()
        ).hexdigest()

    def mask_of(self, name: str, column_id: int | None) -> v1.Policy | None:
        """The policy that masks a column; None if its values are shown.

        A column is masked by its present name and by that in the snapshot that is read, so renames reveal nothing.
        """
        found = [mask for mask in self.masks if column_matches(mask.mask.columns, name)]
        by_id = None if column_id is None else self.masked_ids.get(column_id)
        return _strictest([*found, *([by_id] if by_id else [])])

    @property
    def computed_columns(self) -> Sequence[str]:
        """The columns with a mask that is computed from their values, such as a hash."""
        found = ((name, self.mask_of(name, number)) for name, number in self.columns.items())
        return [name for name, policy in found if policy is not None and policy.mask.kind in _COMPUTED]

    def check_inserted(self, name: str, column_id: int | None, *, has_values: bool) -> None:
        """Raise if the caller inserts values other than NULL into a column with a mask that is computed from its values."""
        policy = self.mask_of(name, column_id) if has_values else None
        if policy is not None and policy.mask.kind in _COMPUTED:
            raise self.refused(
                f"only NULL can be inserted into column {name!r}: leave it out, or ask a caller without this policy"
            )

    def refused(self, why: str) -> PermissionDenied:
        """The error for what a restricted caller may not do."""
        named = ", ".join(self.policies)
        who = f"policies {named} restrict" if len(self.policies) > 1 else f"policy {named} restricts"
        return failure(PermissionDenied, "policy.restricted", who=who, name=self.name, why=why)

    def unusable(self, reason: str) -> PermissionDenied:
        """The error that no rows can be read, because the policies cannot be applied."""
        return failure(PermissionDenied, "policy.unusable", name=self.name, reason=reason)


class CallerPolicies:
    """The policies of an account that restrict one caller. They are read when a table is first asked about.

    `drafts` are more policies, which are not stored.
    """

    def __init__(
        self, stores: Callable[[], Stores], account_id: str, subject: Subject, *, drafts: Sequence[v1.Policy] = ()
    ) -> None:
        self._open, self._account_id, self.subject, self._drafts = stores, account_id, subject, drafts
        self._known: dict[tuple[str, str, str], Restriction | None] = {}
        self._places: dict[str, tuple[str, ...] | None] = {}
        self._branch: Stores | None = None
        self._deciding: Callable[[Any], Any] = lambda on: on

    def on_branch(self, branch: Stores, rights: Stores, deciding: Callable[[Any], Any]) -> CallerPolicies:
        """The same on a branch of the lake. Its objects are restricted as they are, and as those that `deciding` returns for them.

        `branch` has the objects of the branch, and `rights` what decides about rights on them.
        """
        made = CallerPolicies(lambda: rights, self._account_id, self.subject)
        made._branch, made._deciding = branch, deciding
        return made

    def of(self, on: v1.Table | v1.View) -> Restriction | None:
        """What is left of a table or view for this caller; None if it is not restricted."""
        if not self._own:
            return None
        elsewhere = self._deciding(on)
        return self._of(on) if elsewhere is on else _both(self._of(elsewhere), self._of(on))

    def _of(self, on: v1.Table | v1.View) -> Restriction | None:
        # A change may rename columns, or move the object to where other policies hold.
        columns = on.schema_json if isinstance(on, v1.Table) else repr([column.name for column in on.output_columns])
        known = on.resource_id.id, on.namespace_id.id, columns
        if known not in self._known:
            self._known[known] = self._restriction(on)
        return self._known[known]

    def of_table(self, table_id: str) -> Restriction | None:
        """What is left of the table with this id."""
        if not self._own:
            return None
        key = keys.table(self._account_id, table_id)
        table = None if self._branch is None else Repository(self._branch, TABLE).at(key)
        table = table or Repository(self._stores, TABLE).at(key)
        if table is None:
            return None
        if table.value.damage:  # where it is may be unknown, and with it which policies hold
            return Restriction(f"table {table_id}", tuple(self._own), ())
        return self.of(table.value)

    def of_namespace(self, namespace: v1.Namespace) -> Restriction | None:
        """The policies on a namespace or on what contains it."""
        both = (namespace, self._deciding(namespace))
        places = {(each.catalog_id.id, *each.parents, each.display_name) for each in both}
        place = (namespace.catalog_id.id, *namespace.parents, namespace.display_name)
        found = tuple(each for each in self._own if each.damage or any(self._cover(each, either) for either in places))
        return Restriction(f"namespace {'.'.join(place[1:])}", found, ()) if found else None

    def withholding_sizes(self, catalog_id: str, namespace_id: str) -> Callable[[str, bool], bool] | None:
        """Which tables of a namespace have a row filter, so that their sizes are withheld; None if none has.

        The function takes the id of a table, and whether it has tags.
        """
        filters = [each for each in self._own if each.damage or each.HasField("row_filter")]
        if not filters:
            return None
        place = (catalog_id, *(self._place(namespace_id) or ()))
        plain = [each for each in filters if not each.tags]
        if any(not each.objects or self._cover(each, place) for each in plain):  # a damaged one names no objects
            return lambda _, __: True
        named = {each.id for policy in plain for each in policy.objects}
        by_tag = len(plain) < len(filters)
        is_branch = self._branch is not None  # a table may be in another namespace on main

        def is_withheld(table_id: str, has_tags: bool) -> bool:
            if table_id in named:
                return True
            found = self.of_table(table_id) if is_branch or (by_tag and has_tags) else None
            return found is not None and bool(found.filters)

        return is_withheld

    @property
    def restrict_anything(self) -> bool:
        """Whether a policy names the caller."""
        return bool(self._own)

    @property
    def key(self) -> Hashable:
        """Equal for callers who are restricted in the same way, apart from the values of their claims."""
        return tuple(sorted(each.pointer.blob_uri for each in self._stored))

    @property
    def state(self) -> Hashable:
        """A value that differs if other policies restrict the caller, or other columns have the tags that they name."""
        by_tag = any(each.tags for each in self._own)
        tags = self._stores.pointers.scan(keys.column_tags(self._account_id)) if by_tag else ()
        return self.key, tuple((tag.key, tag.blob_uri) for tag in tags)

    # --- which policies hold ------------------------------------------------------------------------------------------

    @cached_property
    def _stores(self) -> Stores:
        return self._open()

    @cached_property
    def _stored(self) -> Sequence[Stored[v1.Policy]]:
        if not self._account_id:
            return []
        names = self.subject.names
        return [
            entry
            for entry in Repository(self._stores, POLICY).entries(keys.policy(self._account_id))
            if entry.value.damage or _restricts(entry.value, names)
        ]

    @cached_property
    def _own(self) -> Sequence[v1.Policy]:
        drafts = [each for each in self._drafts if _restricts(each, self.subject.names)]
        return [*(each.value for each in self._stored), *drafts]

    @property
    def _damaged(self) -> str:
        """The name, or at least the id, of a policy with a damaged record; empty if there is none."""
        return next((each.display_name or each.resource_id.id for each in self._own if each.damage), "")

    def _restriction(self, on: v1.Table | v1.View) -> Restriction | None:
        kind = "table" if isinstance(on, v1.Table) else "view"
        name = f"{kind} {on.display_name}"
        if self._damaged:  # it may hide anything
            return Restriction(name, tuple(self._own), (), missing=f"policy {self._damaged} is damaged")
        place = (on.catalog_id.id, *(self._place(on.namespace_id.id) or ()))
        here = [
            each
            for each in self._own
            if not each.objects
            or any(object_id.id == on.resource_id.id or self._covers(object_id, place) for object_id in each.objects)
        ]
        if not here:
            return None
        columns = current_columns(on)
        tags = self._tags(on) if any(each.tags for each in here) else {}
        filters = [each for each in here if each.HasField("row_filter") and _has_tag(each, tags, columns)]
        masks = [each for each in here if each.HasField("mask")]
        # A column that was dropped is still in older snapshots: it keeps its tags, and its name may match.
        names = {**dict.fromkeys(tags, ""), **{number: column for column, number in columns.items()}}
        masked = {number: found for number, column in names.items() if (found := _mask(masks, column, number, tags))}
        by_name = tuple(mask for mask in masks if mask.mask.columns)
        if not filters and not masked and not by_name:
            return None
        return Restriction(name, tuple(filters), by_name, columns, masked, _lost_column(by_name, on, columns))

    def _tags(self, on: v1.Table | v1.View) -> Mapping[int, frozenset[str]]:
        """The tags of columns, by column id."""
        if isinstance(on, v1.View):
            return {}
        tags = Repository(self._stores, COLUMN_TAGS).find(keys.column_tags(self._account_id, on.resource_id.id))
        return {} if tags is None else {column.column_id: frozenset(column.tags) for column in tags.value.columns}

    def _cover(self, policy: v1.Policy, place: tuple[str, ...]) -> bool:
        """Whether a policy names what contains `place`."""
        return any(self._covers(each, place) for each in policy.objects)

    def _covers(self, object_id: v1.ResourceId, place: tuple[str, ...]) -> bool:
        """Whether an object is the catalog or a namespace that contains `place`: a catalog id and a path."""
        if object_id.kind == v1.RK_CATALOG:
            return object_id.id == place[0]
        if object_id.kind != v1.RK_NAMESPACE:
            return False
        own = self._namespace(object_id.id)
        return own is not None and place[: len(own)] == own

    def _place(self, namespace_id: str) -> tuple[str, ...] | None:
        found = self._namespace(namespace_id)
        return None if found is None else found[1:]

    def _namespace(self, namespace_id: str) -> tuple[str, ...] | None:
        """The catalog id and the path of a namespace; None if it was deleted."""
        if namespace_id not in self._places:
            pointer = self._stores.pointers.get(keys.namespace(self._account_id, namespace_id))
            namespace = Repository(self._stores, NAMESPACE).entry(pointer)
            self._places[namespace_id] = (
                None
                if namespace is None
                else (namespace.value.catalog_id.id, *namespace.value.parents, namespace.value.display_name)
            )
        return self._places[namespace_id]


def _both(on_main: Restriction | None, on_branch: Restriction | None) -> Restriction | None:
    """What two restrictions of one object leave, with the columns of the second. The masks of one hold by column id for both."""
    if on_main is None or on_branch is None:
        return on_branch or on_main
    masked = dict(on_main.masked_ids)
    for number, policy in on_branch.masked_ids.items():
        masked[number] = _strictest([policy, masked.get(number, policy)]) or policy
    return Restriction(
        on_branch.name,
        tuple({each.resource_id.id: each for each in (*on_main.filters, *on_branch.filters)}.values()),
        tuple({each.resource_id.id: each for each in (*on_main.masks, *on_branch.masks)}.values()),
        on_branch.columns,
        masked,
        on_main.missing or on_branch.missing,
    )


def current_columns(on: v1.Table | v1.View) -> Mapping[str, int]:
    """The ids of the columns by name. Columns of views have no ids, so they have negative numbers instead."""
    if isinstance(on, v1.View):
        return {column.name: -number for number, column in enumerate(on.output_columns, 1)}
    return _columns_in(on.schema_json)


@lru_cache(maxsize=1000)
def _columns_in(schema_json: str) -> Mapping[str, int]:
    """The columns of a schema in Iceberg's JSON format; none if it is invalid: such a table cannot be read."""
    try:
        return {str(each["name"]): int(each["id"]) for each in json.loads(schema_json)["fields"]}
    except (ValueError, TypeError, LookupError):
        return {}


def _restricts(policy: v1.Policy, names: frozenset[str]) -> bool:
    named = EVERYONE in policy.subjects or not names.isdisjoint(policy.subjects)
    return named and names.isdisjoint(policy.exceptions)


def _has_tag(policy: v1.Policy, tags: Mapping[int, frozenset[str]], columns: Mapping[str, int]) -> bool:
    """Whether a filter holds for a table: it names no tags, or a column has one of them."""
    wanted = set(policy.tags)
    return not wanted or any(not wanted.isdisjoint(tags.get(number, ())) for number in columns.values())


def _mask(masks: Sequence[v1.Policy], column: str, number: int, tags: Mapping[int, frozenset[str]]) -> v1.Policy | None:
    """The mask of a column, by its name or its tags."""
    own = tags.get(number, frozenset())
    return _strictest(
        [mask for mask in masks if column_matches(mask.mask.columns, column) or not own.isdisjoint(mask.tags)]
    )


def _strictest(masks: Sequence[v1.Policy]) -> v1.Policy | None:
    return min(masks, key=lambda each: (_STRICTEST_FIRST.index(each.mask.kind), each.display_name), default=None)


def _lost_column(masks: Sequence[v1.Policy], on: v1.Table | v1.View, columns: Mapping[str, int]) -> str:
    """The column that a mask on this very object names, and that the object does not have any more."""
    for policy in masks:
        if columns and any(each.id == on.resource_id.id for each in policy.objects):
            for pattern in policy.mask.columns:
                if not any(column_matches([pattern], column) for column in columns):
                    return f"policy {policy.display_name} masks column {pattern!r}, which it does not have"
    return ""


def column_matches(patterns: Sequence[str], column: str) -> bool:
    return any(_pattern(pattern).fullmatch(column.casefold()) for pattern in patterns)


@lru_cache(maxsize=10_000)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.casefold().split("*"))), re.DOTALL)
