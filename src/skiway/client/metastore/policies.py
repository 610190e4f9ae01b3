"""Policies: which rows of tables and views callers see, and what of their columns; and the tags of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, Unpack

from skiway.client.metastore.collection import Listing, listing_of
from skiway.client.metastore.named import NamedCollection, NamedRecord
from skiway.client.metastore.names import Id, Ref, table_id
from skiway.client.metastore.objects import object_id
from skiway.errors import InvalidArgument
from skiway.model import v1
from skiway.resources import POLICY

__all__ = ["MaskName", "Policies", "Policy", "PolicyFields"]

MaskName = Literal["null", "hash", "partial"]

_MASKS: Final[Mapping[str, v1.MaskKind.ValueType]] = {
    "null": v1.MK_NULL,
    "hash": v1.MK_HASH,
    "partial": v1.MK_PARTIAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(NamedRecord):
    """A policy. It has a `row_filter`, which is SQL, or a `mask`, which is `null`, `hash`, `partial` or SQL.

    `objects` are ids of what it holds for, with their kinds; without any, it holds in the whole account. While a policy is
    damaged, restricted callers cannot read its tables.
    """

    subjects: tuple[str, ...]
    exceptions: tuple[str, ...]
    objects: tuple[tuple[str, Id], ...]
    tags: tuple[str, ...]
    columns: tuple[str, ...]
    row_filter: str | None
    mask: str | None
    description: str | None = None


def _policy(policy: v1.Policy, *meta: v1.MutationMeta) -> Policy:
    named = {number: name for name, number in _MASKS.items()}
    return Policy.of(
        policy,
        *meta,
        objects=tuple(
            (v1.ResourceKind.Name(each.kind).removeprefix("RK_").lower(), Id(each.id)) for each in policy.objects
        ),
        columns=tuple(policy.mask.columns),
        row_filter=policy.row_filter.predicate if policy.HasField("row_filter") else None,
        mask=named.get(policy.mask.kind, policy.mask.expression) if policy.HasField("mask") else None,
    )


class PolicyFields(TypedDict, total=False):
    """What people set. Lists are replaced as a whole, and a row filter or a mask together with the columns of a mask.

    A policy holds for the callers in `to` without those in `exceptions`, on the objects in `on`. It has a row filter, a
    built-in mask, or a mask that is an SQL expression.
    """

    to: Sequence[str]
    on: Sequence[Ref]
    exceptions: Sequence[str]
    row_filter: str | None
    mask: MaskName | None
    mask_sql: str | None
    columns: Sequence[str]
    tags: Sequence[str]
    description: str | None


class Policies(NamedCollection[Policy]):
    """`lake.policies`. Callers are named `everyone`, `user:<subject>`, `group:<name>` or `role:<name>`."""

    __slots__ = ()
    _resource, _record = POLICY, staticmethod(_policy)

    def create(self, name: str, *, idempotency_key: str | None = None, **fields: Unpack[PolicyFields]) -> Policy:
        """Create a policy with a row filter or a mask for the callers in `to`."""
        return self._create(name, fields, idempotency_key)

    def update(
        self, name: str, *, new_name: str | None = None, if_version: int | None = None, **fields: Unpack[PolicyFields]
    ) -> Policy:
        """Change the given fields of a policy; a `description` that is None is cleared."""
        return self._update(name, new_name, fields, if_version)

    def _spec(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        values = dict(given)
        row_filter, mask, mask_sql = (values.pop(name, None) for name in ("row_filter", "mask", "mask_sql"))
        rule = _rule(row_filter, mask, mask_sql, values.pop("columns", ()))
        if "on" in values:
            values["objects"] = [object_id(self._calls, each) for each in values.pop("on")]
        if "to" in values:
            values["subjects"] = values.pop("to")
        return {**values, **rule}

    def tagged(self, *, page_size: int | None = None) -> Listing[tuple[Id, Mapping[str, Sequence[str]]]]:
        """List the tables with tagged columns: the id of each, and the tags by the names of the columns."""

        def tags_of(found: v1.ColumnTags) -> tuple[Id, Mapping[str, Sequence[str]]]:
            return Id(found.table_id.id), {each.name: tuple(each.tags) for each in found.columns}

        return listing_of(self._calls, "ListColumnTags", "tags", lambda: ({}, tags_of), page_size)

    def tags(self, table: Ref) -> Mapping[str, Sequence[str]]:
        """Return the tags of a table's columns, by the names of the columns."""
        found = self._calls.rpc("GetColumnTags", table_id=table_id(self._calls, table)).tags
        return {each.name: tuple(each.tags) for each in found.columns}

    def tag(self, table: Ref, column: str, tags: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Replace the tags of a column; return those of all columns."""
        request = {"table_id": table_id(self._calls, table), "column": column, "tags": list(tags)}
        found = self._calls.rpc("SetColumnTags", **request).tags
        return {each.name: tuple(each.tags) for each in found.columns}


def _rule(row_filter: str | None, mask: str | None, mask_sql: str | None, columns: Sequence[str]) -> dict[str, Any]:
    """The field of the spec that has the rule; empty if there is none."""
    given = [name for name, value in (("row_filter", row_filter), ("mask", mask), ("mask_sql", mask_sql)) if value]
    if len(given) > 1 or (columns and not (mask or mask_sql)):
        found = " and ".join(given) or "columns alone"
        raise InvalidArgument(
            f"a policy has one rule, found {found}: give a row filter, or a mask and its columns",
            key="field.invalid",
            field="rule",
        )
    if row_filter is not None:
        return {"row_filter": v1.PolicyFilter(predicate=row_filter)}
    if mask is not None and mask not in _MASKS:
        raise InvalidArgument(
            f"mask {mask!r} does not exist: choose from {', '.join(_MASKS)}", key="field.invalid", field="mask"
        )
    if mask is None and mask_sql is None:
        return {}
    kind = v1.MK_EXPRESSION if mask is None else _MASKS[mask]
    return {"mask": v1.PolicyMask(kind=kind, expression=mask_sql or "", columns=columns)}
