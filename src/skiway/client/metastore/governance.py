"""Governance of tables: grants, policies and quality rules.

Privileges are granted, and policies hold, on catalogs, namespaces, tables and views. Policies decide which rows of tables and views
callers see, and what of their columns. Quality rules are checked, and their results are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from skiway.client.metastore.calls import Calls, Id, Ref, resource_id, segments, table_id
from skiway.client.metastore.collection import Area, Listing, NamedCollection, build, listing_of
from skiway.client.metastore.jobs import Job, watched
from skiway.client.metastore.resources import FromMessages, NamedRecord, enum_name
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.clock import DURATION_SYNTAX, duration_text, parse_duration
from skiway.foundation.resources import POLICY, RULE
from skiway.model import v1

ObjectKind = Literal["catalog", "namespace", "table", "view"]


def object_id(calls: Calls, on: Ref, kind: ObjectKind | None = None) -> v1.ResourceId:
    """Return the id of an object. A name of several segments may be that of a table, a view or a namespace."""
    if isinstance(on, Id) and kind is None:
        raise InvalidArgument(f"{on!r} may be the id of anything: give its kind", key="field", field="kind")
    if kind is not None or not isinstance(on, str | list | tuple):
        return resource_id(kind or "table", calls, on)
    parts = segments(on, resource="object")
    if len(parts) == 1:
        return resource_id("catalog", calls, on)
    found = {}
    for each in ("table", "view", "namespace") if len(parts) > 2 else ("namespace",):
        with suppress(NotFound):
            found[each] = resource_id(each, calls, on)
    if not found:
        raise NotFound(
            f"there is no namespace, table or view {on!r}: check the spelling",
            key="object",
        )
    if len(found) > 1:
        raise InvalidArgument(
            f"{on!r} is the name of a {' and of a '.join(found)}: give the kind of the one that you mean",
            key="field",
            field="kind",
        )
    return next(iter(found.values()))


Privilege = Literal["read", "write", "manage"]

_PRIVILEGES: Final = {enum_name(name): number for name, number in v1.Privilege.items() if number}


@dataclass(frozen=True, slots=True)
class Grant(FromMessages):
    """A privilege of a grantee on an object. `grantee` is `user:<subject>` or `role:<name>`."""

    object_id: Id
    kind: str
    grantee: str
    privilege: str
    created_at: datetime
    damage: str = ""
    """In listings, what is wrong if the record is lost or corrupt; then it grants nothing."""


def _grant(grant: v1.Grant) -> Grant:
    return Grant.of(grant, kind=kind_of(grant.object_id))


def kind_of(object_id: v1.ResourceId) -> str:
    """The kind in an id, such as `table`."""
    return enum_name(v1.ResourceKind.Name(object_id.kind))


class Grants(Area):
    """`lake.grants`. An object is named like `lake`, `lake.sales` or `lake.sales.people`.

    `kind` is needed only for an `Id`, and where a namespace and a table or view have the same name.
    """

    def __call__(
        self,
        on: Ref | None = None,
        *,
        kind: ObjectKind | None = None,
        grantee: str = "",
        page_size: int | None = None,
    ) -> Listing[Grant]:
        """List the grants on an object, or on all; to a grantee, or to all."""

        def fields() -> Mapping[str, Any]:
            return {"object_id": None if on is None else object_id(self._calls, on, kind), "grantee": grantee}

        return listing_of(self._calls, "ListGrants", "grants", _grant, page_size, fields)

    def add(self, on: Ref, grantee: str, privilege: Privilege, *, kind: ObjectKind | None = None) -> Grant:
        """Grant a privilege, in place of the one that the grantee has on the object."""
        if privilege not in _PRIVILEGES:
            raise InvalidArgument(
                f"privilege {privilege!r} does not exist: choose from {', '.join(_PRIVILEGES)}",
                key="field.invalid",
                field="privilege",
            )
        response = self._calls.rpc(
            "AddGrant", object_id=object_id(self._calls, on, kind), grantee=grantee, privilege=_PRIVILEGES[privilege]
        )
        return _grant(response.grant)

    def revoke(self, on: Ref, grantee: str, *, kind: ObjectKind | None = None) -> bool:
        """Revoke the privilege that a grantee has on an object; return whether it had one."""
        response = self._calls.rpc("RevokeGrant", object_id=object_id(self._calls, on, kind), grantee=grantee)
        return bool(response.meta.pointer_version)


MaskName = Literal["null", "hash", "partial"]

_MASKS: Final = {
    enum_name(name): number
    for name, number in v1.MaskKind.items()
    if number not in (v1.MK_UNSPECIFIED, v1.MK_EXPRESSION)
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
    built_in = {number: name for name, number in _MASKS.items()}
    return Policy.of(
        policy,
        *meta,
        objects=tuple((kind_of(each), Id(each.id)) for each in policy.objects),
        columns=tuple(policy.mask.columns),
        row_filter=policy.row_filter.predicate if policy.HasField("row_filter") else None,
        mask=built_in.get(policy.mask.kind, policy.mask.expression) if policy.HasField("mask") else None,
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
    _kind, _record = POLICY, staticmethod(_policy)

    def create(self, name: str, *, idempotency_key: str | None = None, **fields: Unpack[PolicyFields]) -> Policy:
        """Create a policy with a row filter or a mask for the callers in `to`."""
        return self._create({"name": name, **fields}, idempotency_key)

    def update(
        self, name: str, *, new_name: str | None = None, if_version: int | None = None, **fields: Unpack[PolicyFields]
    ) -> Policy:
        """Change the given fields of a policy; a `description` that is None is cleared."""
        return self._rename(name, new_name, fields, if_version)

    def draft(self, name: str, **fields: Unpack[PolicyFields]) -> str:
        """A policy as JSON, for `skiway.seen_by`, which shows what it would leave for a caller. Nothing is stored."""
        return MessageToJson(build(v1.PolicySpec, **self._spec({"name": name, **fields})), indent=None)

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._spec(given)
        row_filter, mask, mask_sql = (values.pop(name, None) for name in ("row_filter", "mask", "mask_sql"))
        rule = _policy_rule(row_filter, mask, mask_sql, values.pop("columns", ()))
        if "on" in values:
            values["objects"] = [object_id(self._calls, each) for each in values.pop("on")]
        if "to" in values:
            values["subjects"] = values.pop("to")
        return {**values, **rule}

    def tagged(self, *, page_size: int | None = None) -> Listing[tuple[Id, Mapping[str, Sequence[str]]]]:
        """List the tables with tagged columns: the id of each, and the tags by the names of the columns."""

        def convert(tags: v1.ColumnTags) -> tuple[Id, Mapping[str, Sequence[str]]]:
            return Id(tags.table_id.id), _tags(tags)

        return listing_of(self._calls, "ListColumnTags", "tags", convert, page_size)

    def tags(self, table: Ref) -> Mapping[str, Sequence[str]]:
        """Return the tags of a table's columns, by the names of the columns."""
        return _tags(self._calls.rpc("GetColumnTags", table_id=table_id(self._calls, table)).tags)

    def tag(self, table: Ref, column: str, tags: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Replace the tags of a column; return those of all columns."""
        request = {"table_id": table_id(self._calls, table), "column": column, "tags": list(tags)}
        return _tags(self._calls.rpc("SetColumnTags", **request).tags)


def _tags(tags: v1.ColumnTags) -> Mapping[str, Sequence[str]]:
    return {column.name: tuple(column.tags) for column in tags.columns}


def _policy_rule(
    row_filter: str | None, mask: str | None, mask_sql: str | None, columns: Sequence[str]
) -> dict[str, Any]:
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


Severity = Literal["error", "warning"]

RULE_KINDS: Final[tuple[str, ...]] = tuple(field.name for field in v1.RuleCheck.DESCRIPTOR.fields)
"""The kinds of rules, such as `row_count`."""

_SEVERITIES: Final[Mapping[str, v1.RuleSeverity.ValueType]] = {"error": v1.RSV_ERROR, "warning": v1.RSV_WARNING}


def check_of(kind: str, values: Mapping[str, Any]) -> v1.RuleCheck:
    """The check of a kind with these values, such as `{"min": 1}`. Durations are text such as `1d`, columns with types a dict."""
    if kind not in RULE_KINDS:
        raise InvalidArgument(
            f"{kind!r} is not a kind of rule: choose from {', '.join(RULE_KINDS)}", key="field.invalid", field="kind"
        )
    made = v1.RuleCheck()
    check: Message = getattr(made, kind)
    check.SetInParent()
    known = check.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        if name not in known:
            raise InvalidArgument(
                f"a rule of kind {kind} has no {name}: choose from {', '.join(known)}", key="field.invalid", field=name
            )
        try:
            _set(check, name, value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{name} of a rule of kind {kind} cannot be {value!r}: {error}", key="field.invalid", field=name
            ) from None
    return made


def _set(check: Message, name: str, value: Any) -> None:
    field = getattr(check, name)
    if isinstance(field, Duration):
        try:
            field.FromTimedelta(parse_duration(value))
        except ValueError:
            raise ValueError(f"give {DURATION_SYNTAX}") from None
    elif isinstance(value, Mapping):
        field.extend(v1.ExpectedColumn(name=key, type=each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        field.extend(value)
    else:
        setattr(check, name, value)


def values_of(check: v1.RuleCheck) -> tuple[str, dict[str, Any]]:
    """The kind of a check, and its values as `check_of` takes them."""
    kind = check.WhichOneof("check") or ""
    found: dict[str, Any] = {}
    given: Any = getattr(check, kind) if kind else v1.RowCountCheck()
    for field in given.DESCRIPTOR.fields:
        value = getattr(given, field.name)
        if isinstance(value, Duration):
            found[field.name] = duration_text(value.ToTimedelta())
        elif field.name == "columns" and kind == "schema":
            found[field.name] = {each.name: each.type for each in value}
        elif field.is_repeated:
            found[field.name] = list(value)
        elif not field.has_presence or given.HasField(field.name):
            found[field.name] = value
    return kind, found


@dataclass(frozen=True, slots=True)
class RuleResult(FromMessages):
    """What a check found. `status` is `passed`, `failed` or `unknown`; `method` is `metadata`, `profile`, `exact` or ""."""

    status: str
    method: str
    snapshot_id: int | None
    checked_at: datetime
    observed: str
    message: str
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(NamedRecord):
    """A rule about a table. `values` are those of its kind; `result` is the newest one, None if it was never checked."""

    table_id: Id
    severity: str
    kind: str
    values: Mapping[str, Any]
    estimates_only: bool
    result: RuleResult | None = None
    description: str | None = None


def _rule(rule: v1.CheckedRule | v1.QualityRule, *meta: v1.MutationMeta) -> Rule:
    result = None
    if isinstance(rule, v1.CheckedRule):
        result = RuleResult.of(rule.result) if rule.HasField("result") else None
        rule = rule.rule
    kind, values = values_of(rule.check)
    severity = "warning" if rule.severity == v1.RSV_WARNING else "error"
    return Rule.of(
        rule, *meta, table_id=Id(rule.table_id.id), severity=severity, kind=kind, values=values, result=result
    )


class RuleFields(TypedDict, total=False):
    """What people set, besides the check."""

    severity: Severity
    estimates_only: bool
    description: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a table's rules: the rules with their results, and the job that reads rows for those that are open."""

    rules: tuple[Rule, ...]
    job: Job | None


class Rules(NamedCollection[Rule]):
    """`lake.rules`: quality rules by name, which is unique in the account."""

    __slots__ = ()
    _kind, _record = RULE, staticmethod(_rule)

    def __call__(self, table: Ref | None = None, *, page_size: int | None = None) -> Listing[Rule]:
        """List rules by name with their newest results; optionally those of one table."""

        def fields() -> Mapping[str, Any]:
            return {} if table is None else {"table_id": table_id(self._calls, table)}

        return self._list(page_size, fields)

    def create(
        self,
        name: str,
        table: Ref,
        kind: str,
        values: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[RuleFields],
    ) -> Rule:
        """Create a rule about a table, such as `create("ids", "lake.sales.orders", "unique", {"columns": ["id"]})`."""
        given = {"name": name, "table_id": table_id(self._calls, table), "check": check_of(kind, values), **fields}
        return self._create(given, idempotency_key)

    def update(
        self,
        name: str,
        *,
        new_name: str | None = None,
        kind: str | None = None,
        values: Mapping[str, Any] | None = None,
        if_version: int | None = None,
        **fields: Unpack[RuleFields],
    ) -> Rule:
        """Change a rule. A new `kind` and its `values` replace the previous ones."""
        check = {} if kind is None else {"check": check_of(kind, values or {})}
        return self._rename(name, new_name, {**fields, **check}, if_version)

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        spec = super()._spec(given)
        return {**spec, "severity": _severity(spec["severity"])} if "severity" in spec else spec

    def results(self, name: str) -> list[RuleResult]:
        """Return the stored results of a rule, newest first."""
        found = self._calls.rpc("ListRuleResults", **self._key(name)).results
        return [RuleResult.of(each) for each in found]

    def check(self, table: Ref, rules: Sequence[str] = (), *, estimates_only: bool = False) -> Check:
        """Check rules of a table now. A job decides what statistics do not decide, unless estimates must suffice."""
        response = self._calls.rpc(
            "CheckRules",
            table_id=table_id(self._calls, table),
            rule_ids=[self._key(each)["rule_id"] for each in rules],
            estimates_only=estimates_only,
        )
        job = Job(response.job) if response.HasField("job") else None
        return Check(tuple(map(_rule, response.rules)), job)

    def wait(self, table: Ref, job: str | Job, *, timeout_s: float | None = None, every_s: float = 0.3) -> Job:
        """Wait for the job of a check to end and return it; raise `TimedOut` after `timeout_s`."""
        job_id, of = job.id if isinstance(job, Job) else job, table_id(self._calls, table)

        def get() -> Job:
            return Job(self._calls.rpc("GetCheck", table_id=of, job_id=job_id).job)

        *_, last = watched(get, timeout_s=timeout_s, every_s=every_s)
        return last


def _severity(name: str) -> v1.RuleSeverity.ValueType:
    if name not in _SEVERITIES:
        raise InvalidArgument(
            f"{name!r} is not a severity: choose from {', '.join(_SEVERITIES)}", key="field.invalid", field="severity"
        )
    return _SEVERITIES[name]
