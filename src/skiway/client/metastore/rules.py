"""Quality rules of tables, and the results of checking them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from skiway.client.metastore.collection import KEEP, Area, Keep, Listing, build, listing_of
from skiway.client.metastore.jobs import Job, watched
from skiway.client.metastore.names import Id, Ref, table_id
from skiway.client.metastore.resources import Meta, time_of
from skiway.durations import SYNTAX, duration_text, parse_duration
from skiway.errors import InvalidArgument
from skiway.model import v1

__all__ = ["RULE_KINDS", "Check", "Rule", "RuleResult", "Rules", "Severity", "check_of", "values_of"]

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
            raise ValueError(f"give {SYNTAX}") from None
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
class RuleResult:
    """What a check found. `status` is `passed`, `failed` or `unknown`; `method` is `metadata`, `profile`, `exact` or ""."""

    status: str
    method: str
    snapshot_id: int | None
    checked_at: datetime
    observed: str
    message: str
    job_id: str

    @classmethod
    def of(cls, result: v1.RuleResult) -> RuleResult:
        """Convert the message."""
        method = v1.RuleMethod.Name(result.method).removeprefix("RMT_").lower()
        return cls(
            v1.RuleStatus.Name(result.status).removeprefix("RST_").lower(),
            "" if method == "unspecified" else method,
            result.snapshot_id if result.HasField("snapshot_id") else None,
            time_of(result.checked_at),
            result.observed,
            result.message,
            result.job_id,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about a table. `values` are those of its kind; `result` is the newest one, None if it was never checked."""

    id: Id
    name: str
    description: str
    table_id: Id
    severity: str
    kind: str
    values: Mapping[str, Any]
    estimates_only: bool
    created_at: datetime
    result: RuleResult | None = None
    version: int | None = None
    """The stored version, which `if_version` can name; None in listings."""
    damage: str = ""
    """In listings, the defect of a lost or corrupt record."""

    @classmethod
    def of(cls, checked: v1.CheckedRule, meta: v1.MutationMeta | None = None) -> Rule:
        """Convert the message."""
        rule = checked.rule
        kind, values = values_of(rule.check)
        return cls(
            Id(rule.resource_id.id),
            rule.display_name,
            rule.description,
            Id(rule.table_id.id),
            "warning" if rule.severity == v1.RSV_WARNING else "error",
            kind,
            values,
            rule.estimates_only,
            rule.created_at.ToDatetime(UTC),
            RuleResult.of(checked.result) if checked.HasField("result") else None,
            meta.pointer_version if meta else None,
            rule.damage,
        )


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a table's rules: the rules with their results, and the job that reads rows for those that are open."""

    rules: tuple[Rule, ...]
    job: Job | None


class Rules(Area):
    """`lake.rules`: quality rules by name, which is unique in the account."""

    def __call__(self, table: Ref | None = None, *, page_size: int | None = None) -> Listing[Rule]:
        """List rules by name with their newest results; optionally those of one table."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Rule]]:
            return {} if table is None else {"table_id": table_id(self._calls, table)}, Rule.of

        return listing_of(self._calls, "ListRules", "rules", start, page_size)

    def get(self, name: str) -> Rule:
        """Return the rule with a name or an `Id`."""
        key = {"rule_id": self._id(name)} if isinstance(name, Id) else {"display_name": name}
        response = self._calls.rpc("GetRule", **key)
        return Rule.of(response.rule, response.meta)

    def create(
        self,
        name: str,
        table: Ref,
        kind: str,
        values: Mapping[str, Any],
        *,
        severity: Severity = "error",
        estimates_only: bool = False,
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Rule:
        """Create a rule about a table, such as `create("ids", "lake.sales.orders", "unique", {"columns": ["id"]})`."""
        spec = build(
            v1.QualityRuleSpec,
            display_name=name,
            description=description,
            table_id=table_id(self._calls, table),
            severity=_severity(severity),
            check=check_of(kind, values),
            estimates_only=estimates_only,
        )
        response = self._calls.rpc("CreateRule", spec=spec, idempotency=self._calls.key(idempotency_key))
        return Rule.of(v1.CheckedRule(rule=response.rule), response.meta)

    def update(
        self,
        name: str,
        *,
        new_name: str | Keep = KEEP,
        kind: str | Keep = KEEP,
        values: Mapping[str, Any] | None = None,
        severity: Severity | Keep = KEEP,
        estimates_only: bool | Keep = KEEP,
        description: str | Keep | None = KEEP,
        if_version: int | None = None,
    ) -> Rule:
        """Change a rule. A new `kind` and its `values` replace the previous ones."""
        changes: dict[str, Any] = {
            "display_name": new_name,
            "description": description,
            "severity": severity if isinstance(severity, Keep) else _severity(severity),
            "estimates_only": estimates_only,
            "check": kind if isinstance(kind, Keep) else check_of(kind, values or {}),
        }
        given = {key: value for key, value in changes.items() if value is not KEEP}
        response = self._calls.rpc(
            "UpdateRule",
            rule_id=self._id(name),
            spec=build(v1.QualityRuleSpec, **given),
            update_mask=FieldMask(paths=sorted(given)),
            precondition=None if if_version is None else v1.Precondition(expected_version=if_version),
        )
        return Rule.of(v1.CheckedRule(rule=response.rule), response.meta)

    def delete(self, name: str, *, if_version: int | None = None) -> Meta:
        """Delete a rule and its results; return its last stored version."""
        condition = None if if_version is None else v1.Precondition(expected_version=if_version)
        return Meta.of(self._calls.rpc("DeleteRule", rule_id=self._id(name), precondition=condition).meta)

    def results(self, name: str) -> list[RuleResult]:
        """Return the stored results of a rule, newest first."""
        found = self._calls.rpc("ListRuleResults", rule_id=self._id(name)).results
        return [RuleResult.of(each) for each in found]

    def check(self, table: Ref, rules: Sequence[str] = (), *, estimates_only: bool = False) -> Check:
        """Check rules of a table now. A job decides what statistics do not decide, unless estimates must suffice."""
        response = self._calls.rpc(
            "CheckRules",
            table_id=table_id(self._calls, table),
            rule_ids=[self._id(each) for each in rules],
            estimates_only=estimates_only,
        )
        job = Job(response.job) if response.HasField("job") else None
        return Check(tuple(map(Rule.of, response.rules)), job)

    def wait(self, table: Ref, job: str | Job, *, timeout_s: float | None = None, every_s: float = 0.3) -> Job:
        """Wait for the job of a check to end and return it; raise `TimedOut` after `timeout_s`."""
        job_id, of = job.id if isinstance(job, Job) else job, table_id(self._calls, table)

        def get() -> Job:
            return Job(self._calls.rpc("GetCheck", table_id=of, job_id=job_id).job)

        *_, last = watched(get, timeout_s=timeout_s, every_s=every_s)
        return last

    def _id(self, name: str) -> v1.ResourceId:
        if isinstance(name, Id):
            return v1.ResourceId(id=name, kind=v1.RK_RULE)
        found: v1.ResourceId = self._calls.rpc("GetRule", display_name=name).rule.rule.resource_id
        return found


def _severity(name: str) -> v1.RuleSeverity.ValueType:
    if name not in _SEVERITIES:
        raise InvalidArgument(
            f"{name!r} is not a severity: choose from {', '.join(_SEVERITIES)}", key="field.invalid", field="severity"
        )
    return _SEVERITIES[name]
