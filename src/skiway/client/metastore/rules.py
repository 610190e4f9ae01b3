"""Quality rules of tables, and the results of checking them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from skiway.client.metastore.collection import Listing, listing_of
from skiway.client.metastore.jobs import Job, watched
from skiway.client.metastore.named import FromMessages, NamedCollection, NamedRecord
from skiway.client.metastore.names import Id, Ref, table_id
from skiway.durations import SYNTAX, duration_text, parse_duration
from skiway.errors import InvalidArgument
from skiway.model import v1
from skiway.resources import RULE

__all__ = ["RULE_KINDS", "Check", "Rule", "RuleFields", "RuleResult", "Rules", "Severity", "check_of", "values_of"]

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
    _resource, _record = RULE, staticmethod(_rule)

    def __call__(self, table: Ref | None = None, *, page_size: int | None = None) -> Listing[Rule]:
        """List rules by name with their newest results; optionally those of one table."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Rule]]:
            return {} if table is None else {"table_id": table_id(self._calls, table)}, _rule

        return listing_of(self._calls, "ListRules", "rules", start, page_size)

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
        given = {**fields, "table_id": table_id(self._calls, table), "check": check_of(kind, values)}
        return self._create(name, given, idempotency_key)

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
        return self._update(name, new_name, {**fields, **check}, if_version)

    def _spec(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**given, "severity": _severity(given["severity"])} if "severity" in given else given

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
