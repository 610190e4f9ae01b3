"""Policies: which rows of tables and views callers see, and what of their columns; and the tags of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from google.protobuf.field_mask_pb2 import FieldMask

from skiway.client.metastore.collection import KEEP, Area, Keep, Listing, build, listing_of
from skiway.client.metastore.names import Id, Ref, table_id
from skiway.client.metastore.objects import object_id
from skiway.client.metastore.resources import Meta
from skiway.errors import InvalidArgument
from skiway.model import v1

__all__ = ["MaskName", "Policies", "Policy"]

MaskName = Literal["null", "hash", "partial"]

_MASKS: Final[Mapping[str, v1.MaskKind.ValueType]] = {
    "null": v1.MK_NULL,
    "hash": v1.MK_HASH,
    "partial": v1.MK_PARTIAL,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. It has a `row_filter`, which is SQL, or a `mask`, which is `null`, `hash`, `partial` or SQL.

    `objects` are ids of what it holds for, with their kinds; without any, it holds in the whole account.
    """

    id: Id
    name: str
    description: str
    subjects: tuple[str, ...]
    exceptions: tuple[str, ...]
    objects: tuple[tuple[str, Id], ...]
    tags: tuple[str, ...]
    columns: tuple[str, ...]
    row_filter: str | None
    mask: str | None
    created_at: datetime
    version: int | None = None
    """The stored version, which `if_version` can name; None in listings."""
    damage: str = ""
    """In listings, the defect of a lost or corrupt record. Until it is repaired, restricted callers cannot read its tables."""

    @classmethod
    def of(cls, policy: v1.Policy, meta: v1.MutationMeta | None = None) -> Policy:
        """Convert the message."""
        named = {number: name for name, number in _MASKS.items()}
        return cls(
            Id(policy.resource_id.id),
            policy.display_name,
            policy.description,
            tuple(policy.subjects),
            tuple(policy.exceptions),
            tuple(
                (v1.ResourceKind.Name(each.kind).removeprefix("RK_").lower(), Id(each.id)) for each in policy.objects
            ),
            tuple(policy.tags),
            tuple(policy.mask.columns),
            policy.row_filter.predicate if policy.HasField("row_filter") else None,
            named.get(policy.mask.kind, policy.mask.expression) if policy.HasField("mask") else None,
            policy.created_at.ToDatetime(UTC),
            meta.pointer_version if meta else None,
            policy.damage,
        )


class Policies(Area):
    """`lake.policies`. Callers are named `everyone`, `user:<subject>`, `group:<name>` or `role:<name>`."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Policy]:
        """List all policies by name."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Policy]]:
            return {}, Policy.of

        return listing_of(self._calls, "ListPolicies", "policies", start, page_size)

    def get(self, name: str) -> Policy:
        """Return the policy with a name or an `Id`."""
        key = {"policy_id": self._id(name)} if isinstance(name, Id) else {"display_name": name}
        response = self._calls.rpc("GetPolicy", **key)
        return Policy.of(response.policy, response.meta)

    def create(
        self,
        name: str,
        *,
        to: Sequence[str],
        on: Sequence[Ref] = (),
        exceptions: Sequence[str] = (),
        row_filter: str | None = None,
        mask: MaskName | None = None,
        mask_sql: str | None = None,
        columns: Sequence[str] = (),
        tags: Sequence[str] = (),
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Policy:
        """Create a policy with a row filter, a built-in mask, or a mask that is an SQL expression."""
        spec = build(
            v1.PolicySpec,
            display_name=name,
            description=description,
            subjects=to,
            exceptions=exceptions,
            objects=[object_id(self._calls, each) for each in on],
            tags=tags,
            **_rule(row_filter, mask, mask_sql, columns),
        )
        response = self._calls.rpc("CreatePolicy", spec=spec, idempotency=self._calls.key(idempotency_key))
        return Policy.of(response.policy, response.meta)

    def update(
        self,
        name: str,
        *,
        new_name: str | Keep = KEEP,
        to: Sequence[str] | Keep = KEEP,
        on: Sequence[Ref] | Keep = KEEP,
        exceptions: Sequence[str] | Keep = KEEP,
        row_filter: str | None = None,
        mask: MaskName | None = None,
        mask_sql: str | None = None,
        columns: Sequence[str] = (),
        tags: Sequence[str] | Keep = KEEP,
        description: str | Keep | None = KEEP,
        if_version: int | None = None,
    ) -> Policy:
        """Change a policy. A row filter or a mask replaces the previous one, together with its columns."""
        objects = on if isinstance(on, Keep) else [object_id(self._calls, each) for each in on]
        changes: dict[str, Any] = {
            "display_name": new_name,
            "description": description,
            "subjects": to,
            "exceptions": exceptions,
            "objects": objects,
            "tags": tags,
        }
        given = {key: value for key, value in changes.items() if value is not KEEP}
        rule = _rule(row_filter, mask, mask_sql, columns)
        if not given and not rule:
            raise InvalidArgument(
                "the update changes nothing: give at least one new value",
                key="update.mask.required",
                field="update_mask",
            )
        response = self._calls.rpc(
            "UpdatePolicy",
            policy_id=self._id(name),
            spec=build(v1.PolicySpec, **given, **rule),
            update_mask=FieldMask(paths=[*given, *(["rule"] if rule else [])]),
            precondition=None if if_version is None else v1.Precondition(expected_version=if_version),
        )
        return Policy.of(response.policy, response.meta)

    def delete(self, name: str, *, if_version: int | None = None) -> Meta:
        """Delete a policy; return its last stored version."""
        condition = None if if_version is None else v1.Precondition(expected_version=if_version)
        return Meta.of(self._calls.rpc("DeletePolicy", policy_id=self._id(name), precondition=condition).meta)

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

    def _id(self, name: str) -> v1.ResourceId:
        if isinstance(name, Id):
            return v1.ResourceId(id=name, kind=v1.RK_POLICY)
        found: v1.ResourceId = self._calls.rpc("GetPolicy", display_name=name).policy.resource_id
        return found


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
