"""Quality rules as resources: stored after a check that they fit the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final

from skiway.foundation import resources
from skiway.metastore.quality.facts import column_types, type_of
from skiway.metastore.records import keys
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.kinds import RULE, RULE_RESULTS
from skiway.metastore.records.realm import Realm, columns_of, local_id
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.named import NamedCalls
from skiway.metastore.statistics.bounds import bound
from skiway.model import v1
from skiway.storage import Delete, Operation

MAX_ITEMS: Final = 1000
MAX_TEXT: Final = 1000
KINDS: Final = ", ".join(field.name for field in v1.RuleCheck.DESCRIPTOR.fields if field.name != "expectation")


def list_(realm: Realm, request: v1.ListRulesRequest) -> v1.ListRulesResponse:
    """List rules by name, of one table or all, with their newest results."""
    prefix = keys.rule_name(realm.account_id)
    if request.HasField("table_id"):
        table_id = hierarchy.table(realm, request.table_id, damaged=True).value.resource_id.id
        prefix = keys.rule_of_table(realm.account_id, table_id)
    found, page = listed(realm.all(RULE), prefix, request.page)
    return v1.ListRulesResponse(rules=[_checked(realm, each) for each in found], page=page)


def scan(realm: Realm, table_id: str = "") -> Iterator[v1.CheckedRule]:
    """All rules, of one table or all, by name. Those with a damaged record have `damage` set."""
    prefix = keys.rule_of_table(realm.account_id, table_id) if table_id else keys.rule_name(realm.account_id)
    return (_checked(realm, found.value) for found in realm.all(RULE).entries(prefix))


def of_table(realm: Realm, table_id: str) -> list[Stored[v1.QualityRule]]:
    """The rules of a table that can be read, with their canonical pointers."""
    found = (
        realm.all(RULE).find_named(each.key)
        for each in realm.stores.pointers.scan(keys.rule_of_table(realm.account_id, table_id))
    )
    return [each for each in found if each is not None]


def require(realm: Realm, rule_id: str) -> Stored[v1.QualityRule]:
    """The rule with an id. Raise `NotFound` if there is none."""
    return realm.by_id(RULE, rule_id)


def without_results(realm: Realm, rule_id: str) -> Iterator[Operation]:
    """The operations that delete the results of a rule."""
    results = realm.without_policies().all(RULE_RESULTS).peek(keys.rule_results(realm.account_id, rule_id))
    if results is None:
        return
    pointer, value = results
    named = () if value is None else RULE_RESULTS.names(value)
    for each in (pointer, *filter(None, map(realm.stores.pointers.get, named))):
        yield Delete(each.key, expect=each.version)


def _checked(realm: Realm, rule: v1.QualityRule) -> v1.CheckedRule:
    return v1.CheckedRule(rule=rule, result=newest_result(realm, rule.resource_id.id))


def newest_result(realm: Realm, rule_id: str) -> v1.RuleResult | None:
    """The newest result of a rule that the caller may see."""
    results = realm.all(RULE_RESULTS).at(keys.rule_results(realm.account_id, rule_id))
    return results.value.results[0] if results is not None and results.value.results else None


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(realm: Realm, rule: v1.QualityRule, spec: v1.QualityRuleSpec, paths: Set[str]) -> None:
    """Raise unless the rule can be checked. A new check must fit the table as it is now; one about the schema without columns
    gets those of the table.
    """
    table_id = local_id(realm, spec.table_id, v1.RK_TABLE, field="spec.table_id") if spec.HasField("table_id") else ""
    if table_id and table_id != rule.table_id.id:
        raise invalid_field("spec.table_id", "another table", "a rule stays with its table: create a new one instead")
    table = hierarchy.table(realm, rule.table_id).value if "check" in paths else None
    if table is not None:
        rule.table_id.CopyFrom(table.resource_id)
    rule.severity = rule.severity or v1.RSV_ERROR
    if rule.severity not in (v1.RSV_WARNING, v1.RSV_ERROR):
        raise invalid_field("severity", str(rule.severity), "choose RSV_WARNING or RSV_ERROR")
    kind = rule.check.WhichOneof("check")
    if kind is None:
        raise invalid_field("check", "of no kind that this server knows", f"choose from {KINDS}")
    if kind == "expectation" and "check" in paths:
        raise invalid_field("check", "an expectation", "declare it in a YAML file of the pipeline that makes the table")
    given = getattr(rule.check, kind)
    _check_limits(kind, given)
    if table is None:
        return
    types = column_types(table.schema_json)
    if kind == "schema":
        _check_schema(given, types, table)
        return
    for name in columns_of(rule.check):
        _check_column(f"check.{kind}", name, types, table)
    if kind in ("range", "quantile", "allowed_values"):
        _check_values(kind, given, types[given.column])


def _check_limits(kind: str, given: Any) -> None:
    """Raise unless the limits and lists of a check make sense by themselves."""

    def require(ok: bool, field: str, found: object, wanted: str) -> None:
        if not ok:
            raise invalid_field(f"check.{kind}{field and f'.{field}'}", str(found), wanted)

    def require_some(*limits: str) -> list[str]:
        present = [name for name in limits if given.HasField(name)]
        wanted = f"{', '.join(limits[:-1])} or {limits[-1]}"
        require(bool(present), "", "without limits", f"give {wanted}")
        return present

    share = "give a share between 0 and 1"
    match kind:
        case "row_count":
            for name in require_some("min", "max", "max_decrease", "max_increase"):
                value = getattr(given, name)
                require(0 <= value < math.inf, name, value, "give a number from 0 on")
            require(given.max_decrease <= 1, "max_decrease", given.max_decrease, share)
        case "null_share":
            require(0 <= given.max <= 1, "max", given.max, share)
        case "distinct_count" | "range" | "quantile":
            require_some("min", "max")
            if kind == "quantile":
                require(0 <= given.quantile <= 1, "quantile", given.quantile, share)
        case "freshness":
            seconds = f"{given.max_age.ToSeconds()} s"
            require(given.max_age.ToNanoseconds() > 0, "max_age", seconds, "give a duration of more than 0 s")
        case "allowed_values":
            size = len(given.values)
            require(0 < size <= MAX_ITEMS, "values", f"a list of {size}", f"give 1 to {MAX_ITEMS} values")
        case "unique":
            names = given.columns
            found = ", ".join(names[:50]) or "empty"
            is_key = 0 < len(names) <= MAX_ITEMS and len(set(names)) == len(names)
            require(is_key, "columns", found, "name each column of the key once")
    texts = (
        given.values if kind == "allowed_values" else (given.min, given.max) if kind in ("range", "quantile") else ()
    )
    is_short = all(len(text) <= MAX_TEXT for text in texts)
    require(is_short, "", "too long", f"give values of up to {MAX_TEXT} characters")
    if kind in ("distinct_count", "row_count") and given.HasField("min") and given.HasField("max"):
        require(given.min <= given.max, "min", given.min, f"it cannot exceed max, which is {given.max}")


def _check_column(where: str, name: str, types: Mapping[str, str], table: v1.Table) -> None:
    if name not in types:
        raise invalid_field(
            f"{where}.column",
            f"{name[:100]!r}, which table {table.display_name} does not have",
            f"choose from {_some(types)}",
        )
    if type_of(types[name]) is None:
        raise invalid_field(
            f"{where}.column", f"{name!r} of type {types[name][:100]}", "choose a column with plain values"
        )


def _check_values(kind: str, given: Any, column_type: str) -> None:
    """Raise unless the values can be read in the type of the column."""
    of = type_of(column_type)
    assert of is not None
    named = (
        given.values
        if kind == "allowed_values"
        else [getattr(given, name) for name in ("min", "max") if given.HasField(name)]
    )
    parsed = []
    for text in named:
        try:
            parsed.append(bound(of, text))
        except (ValueError, OverflowError) as error:
            raise invalid_field(
                f"check.{kind}", repr(text[:100]), f"it cannot be read as {column_type}: {error}"
            ) from None
    if kind != "allowed_values" and len(parsed) == 2 and parsed[0].value > parsed[1].value:
        raise invalid_field(f"check.{kind}.min", given.min, f"it cannot exceed max, which is {given.max}")


def _check_schema(given: v1.SchemaCheck, types: Mapping[str, str], table: v1.Table) -> None:
    if not given.columns:
        if not types:
            raise invalid_field(
                "check.schema.columns", "empty", f"table {table.display_name} has no columns yet: name them"
            )
        given.columns.extend(v1.ExpectedColumn(name=name, type=each) for name, each in types.items())
    names = [column.name for column in given.columns]
    if len(set(names)) < len(names) or not all(column.name and column.type for column in given.columns):
        raise invalid_field("check.schema.columns", _some(names), "give each column once, with its type")


def _some(names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(list(names)[:50])


CALLS: Final = NamedCalls(
    resources.RULE,
    RULE,
    _check,
    parent=lambda realm, spec: hierarchy.table(realm, spec.table_id),
    status=lambda realm, rule: {"rule": _checked(realm, rule)},
    deleting=without_results,
)
"""The calls for rules. Those of a get and a list return the newest results."""
