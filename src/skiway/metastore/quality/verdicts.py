"""Decides a rule from what is known about a table.

Statistics may be imprecise: a distinct count is estimated, and deleted rows still count in column statistics. So every figure
is an interval that contains the true value. A rule passes if the whole interval is within its limits, fails if no part of it
is, and is otherwise *undecided*: then the rows must be read. A figure from the rows is an interval of one value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from skiway.metastore.statistics.bounds import LogicalType, bound
from skiway.model import v1

SHOWN: Final = 5
"""How many unexpected values or columns a message lists."""


Verdicts = Mapping[str, tuple[int, int]]
"""How many rows break an expectation, and how many rows were judged, by the name of the expectation."""

VERDICTS: Final = "skiway.expectations"
"""The property of a snapshot that has the verdicts on its rows."""


class Unmeasured(Exception):
    """A figure is not known; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Contains a figure. A side that is None is unbounded."""

    low: Any
    high: Any

    @property
    def is_exact(self) -> bool:
        """Whether it is a single value."""
        return self.low is not None and self.low == self.high

    def within(self, least: Any, most: Any) -> bool | None:
        """Whether the figure is between two limits, of which each may be None; None if that is undecided."""
        too_low = least is not None and self.high is not None and self.high < least
        too_high = most is not None and self.low is not None and self.low > most
        if too_low or too_high:
            return False
        high_enough = least is None or (self.low is not None and self.low >= least)
        low_enough = most is None or (self.high is not None and self.high <= most)
        return True if high_enough and low_enough else None


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What the rows tell about a key: how many of its values occur more than once, and how many rows have NULL in it."""

    repeated: int
    nulls: int


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What is known about the values of a column. `values` has some of them, or all if `is_complete`.

    What is None is not known. `quantiles` are the values at some ranks, of which each is off by up to `rank_error`.
    """

    type: LogicalType
    null_share: Interval | None = None
    distinct: Interval | None = None
    least: Interval | None = None
    most: Interval | None = None
    quantiles: Mapping[float, Any] = field(default_factory=dict)
    rank_error: float = 0.0
    values: Sequence[str] | None = None
    is_complete: bool = False
    is_sure: bool = True
    """Whether `values` really occur: a value that only deleted rows had may not."""

    def quantile(self, rank: float) -> Interval:
        """The value at a rank, between the values at the nearest ranks that are certainly not above and not below."""
        if self.rank_error == 0 and rank in self.quantiles:
            return Interval(self.quantiles[rank], self.quantiles[rank])
        below = [value for at, value in self.quantiles.items() if at + self.rank_error <= rank]
        above = [value for at, value in self.quantiles.items() if at - self.rank_error >= rank]
        low = max(below) if below else self.least.low if self.least else None
        high = min(above) if above else self.most.high if self.most else None
        return Interval(low, high)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What is known about a table in one snapshot, and how it was found: from metadata and profiles, or from the rows."""

    schema: Mapping[str, str]
    age: timedelta | None = None
    rows: Interval | None = None
    rows_before: Interval | None = None
    """The rows of the previous snapshot; None if there is none, or nothing is known about it."""
    has_previous: bool = False
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    keys: Mapping[tuple[str, ...], KeyFacts] = field(default_factory=dict)
    method: v1.RuleMethod.ValueType = v1.RMT_PROFILE
    unmeasured: str = ""
    """Why statistics of columns are missing."""
    expectations: Verdicts = field(default_factory=dict)
    """What the pipeline that made the rows found before it published them."""

    def column(self, name: str) -> ColumnFacts:
        """The facts about a column. Raise `Unmeasured` if there are none."""
        if name not in self.schema:
            known = ", ".join(list(self.schema)[:50])
            raise Unmeasured(f"the table has no column {name!r} any more, only {known}: change or delete the rule")
        found = self.columns.get(name)
        if found is None:
            raise Unmeasured(
                self.unmeasured or f"the profile does not include column {name!r}: profile the table again"
            )
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a rule. `status` is None if the rows must be read to decide."""

    status: v1.RuleStatus.ValueType | None
    method: v1.RuleMethod.ValueType = v1.RMT_UNSPECIFIED
    observed: str = ""
    message: str = ""


def judged(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    """Decide a rule. It is unknown if a figure is missing."""
    try:
        return _JUDGES[check.WhichOneof("check") or ""](check, facts)
    except Unmeasured as reason:
        return Verdict(v1.RST_UNKNOWN, message=str(reason))


def _decided(ok: bool | None, facts: TableFacts, observed: str, message: str, *, metadata: bool = False) -> Verdict:
    method = v1.RMT_METADATA if metadata and facts.method != v1.RMT_EXACT else facts.method
    if ok is None:
        return Verdict(None, observed=observed)
    return Verdict(v1.RST_PASSED, method, observed) if ok else Verdict(v1.RST_FAILED, method, observed, message)


# --- each kind of rule ------------------------------------------------------------------------------------------------


def _row_count(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    rule = check.row_count
    rows = facts.rows
    if rows is None:
        raise Unmeasured("the number of rows is not known: synchronise or profile the table")
    observed = f"{_shown(rows)} rows"
    least, most, down, up = _given(rule, "min", "max", "max_decrease", "max_increase")
    verdicts = [rows.within(least, most)]
    wanted = [f"{_limits(least, most)} rows"] if least is not None or most is not None else []
    if (down is not None or up is not None) and facts.has_previous:
        before = facts.rows_before
        if before is None or before.low is None or before.high is None:
            raise Unmeasured(
                "the number of rows in the previous snapshot is not known: profile it, or wait for the next one"
            )
        observed += f", {_shown(before)} before"
        lowest = None if down is None else Interval(before.low * (1 - down), before.high * (1 - down))
        highest = None if up is None else Interval(before.low * (1 + up), before.high * (1 + up))
        verdicts.append(_compared(rows, lowest, highest))
        wanted += [f"a decrease of at most {_percent(down)}"] if down is not None else []
        wanted += [f"an increase of at most {_percent(up)}"] if up is not None else []
    return _decided(_all(*verdicts), facts, observed, f"expected {' and '.join(wanted)}", metadata=True)


def _all(*verdicts: bool | None) -> bool | None:
    """Whether all limits hold; None if that is undecided."""
    return False if False in verdicts else None if None in verdicts else True


def _compared(rows: Interval, lowest: Interval | None, highest: Interval | None) -> bool | None:
    """Whether a count is between two limits that are intervals themselves."""
    if (lowest and rows.high is not None and rows.high < lowest.low) or (highest and rows.low > highest.high):
        return False
    high_enough = lowest is None or rows.low >= lowest.high
    low_enough = highest is None or (rows.high is not None and rows.high <= highest.low)
    return True if high_enough and low_enough else None


def _null_share(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    rule = check.null_share
    share = _known(facts.column(rule.column).null_share, facts, f"NULLs of column {rule.column!r}")
    shown = _percent(share.high) if share.is_exact else f"{_percent(share.low)} to {_percent(share.high)}"
    observed = f"{shown} of {rule.column} is NULL"
    return _decided(share.within(None, rule.max), facts, observed, f"expected at most {_percent(rule.max)}")


def _distinct_count(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    rule = check.distinct_count
    count = _known(facts.column(rule.column).distinct, facts, f"distinct values of column {rule.column!r}")
    least, most = _given(rule, "min", "max")
    observed = f"{_shown(count)} distinct values of {rule.column}"
    return _decided(count.within(least, most), facts, observed, f"expected {_limits(least, most)} values")


def _range(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    rule = check.range
    column = facts.column(rule.column)
    if _is_empty(column):
        return _decided(True, facts, f"{rule.column} has no values", "")
    if None in (column.least, column.most) and facts.method != v1.RMT_EXACT:  # for example, bounds that are too long
        return Verdict(None, observed=f"the profile has no range of {rule.column}")
    low, high = (_known(each, facts, f"range of column {rule.column!r}") for each in (column.least, column.most))
    # A smaller value than the smallest is impossible, and a larger one than the largest.
    least, most = _values(rule, column.type)
    ok = _all(low.within(least, None), high.within(None, most))
    observed = f"{rule.column} is between {low.low} and {high.high}"
    return _decided(ok, facts, observed, f"expected values of {_limits(*_given(rule, 'min', 'max'))}")


def _is_empty(column: ColumnFacts) -> bool:
    return column.distinct is not None and column.distinct.high == 0


def _quantile(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    rule = check.quantile
    column = facts.column(rule.column)
    if not column.quantiles:
        if _is_empty(column):
            return _decided(True, facts, f"{rule.column} has no values", "")
        return Verdict(None, observed=f"the profile has no quantiles of {rule.column}")
    value = column.quantile(rule.quantile)
    shown = value.low if value.is_exact else f"between {value.low} and {value.high}"
    observed = f"the {rule.quantile:g} quantile of {rule.column} is {shown}"
    ok = value.within(*_values(rule, column.type))
    return _decided(ok, facts, observed, f"expected {_limits(*_given(rule, 'min', 'max'))}")


def _freshness(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    if facts.age is None:
        raise Unmeasured("the table has no snapshot yet: write to it, or synchronise it")
    most = check.freshness.max_age.ToTimedelta()
    observed = f"the current snapshot is {age_of(facts.age)} old"
    return _decided(facts.age <= most, facts, observed, f"expected at most {age_of(most)}", metadata=True)


def _allowed_values(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    rule = check.allowed_values
    column = facts.column(rule.column)
    allowed = {bound(column.type, text).text for text in rule.values}
    strange = [each for each in column.values or () if each not in allowed]
    if strange and (column.is_sure or column.is_complete):
        more = f" and {len(strange) - SHOWN} more" if len(strange) > SHOWN else ""
        observed = f"{rule.column} has the values {', '.join(map(repr, strange[:SHOWN]))}{more}"
        return _decided(False, facts, observed, f"expected {_listed(rule.values)}")
    if column.is_complete or _is_empty(column):
        return _decided(True, facts, f"{rule.column} has only allowed values", "")
    if column.distinct is not None and column.distinct.low > len(allowed):
        observed = f"{_shown(column.distinct)} distinct values of {rule.column}"
        return _decided(False, facts, observed, f"expected {_listed(rule.values)}")
    return Verdict(None, observed=f"the profile does not have all values of {rule.column}")


def _unique(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    names = tuple(check.unique.columns)
    key = ", ".join(names)
    read = facts.keys.get(names)
    if read is not None:
        observed = f"{read.repeated} values of {key} occur more than once, and {read.nulls} rows have NULL in it"
        return _decided(read.repeated == read.nulls == 0, facts, observed, "expected a unique key without NULL")
    columns = [facts.column(name) for name in names]
    rows = facts.rows
    if rows is None:
        raise Unmeasured("the number of rows is not known: synchronise or profile the table")
    for name, column in zip(names, columns, strict=True):
        if column.null_share is not None and column.null_share.low > 0:
            observed = f"{_percent(column.null_share.low)} of {name} is NULL"
            return _decided(False, facts, observed, "expected a key without NULL")
    most = 1.0
    for column in columns:
        most *= float("inf") if column.distinct is None or column.distinct.high is None else column.distinct.high
    if rows.low is not None and most < rows.low:
        observed = f"at most {most:.0f} different values of {key} in {_shown(rows)} rows"
        return _decided(False, facts, observed, "expected a unique key")
    without_null = all(each.null_share is not None and each.null_share.high == 0 for each in columns)
    own = [each for each in columns if each.distinct is not None and each.distinct.low >= (rows.high or float("inf"))]
    if without_null and (own or rows.high == 0):
        return _decided(True, facts, f"{key} differs in all {_shown(rows)} rows", "")
    count = columns[0].distinct if len(columns) == 1 else None
    found = "an unknown number of" if count is None else f"about {_shown(count)}"
    return Verdict(None, observed=f"{found} different values of {key} in {_shown(rows)} rows")


def _schema(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    expected = {column.name: column.type for column in check.schema.columns}
    removed = [f"{name} is missing" for name in expected if name not in facts.schema]
    changed = [
        f"{name} is {facts.schema[name]} instead of {type_}"
        for name, type_ in expected.items()
        if name in facts.schema and facts.schema[name] != type_
    ]
    added = [] if check.schema.allow_added else [f"{name} is new" for name in facts.schema if name not in expected]
    found = [*removed, *changed, *added]
    more = f" and {len(found) - SHOWN} more changes" if len(found) > SHOWN else ""
    observed = f"{'; '.join(found[:SHOWN])}{more}" if found else f"{len(expected)} columns are as expected"
    return _decided(not found, facts, observed, "update the rule to accept the new schema", metadata=True)


def _expectation(check: v1.RuleCheck, facts: TableFacts) -> Verdict:
    found = facts.expectations.get(check.expectation.name)
    if found is None:
        raise Unmeasured("the pipeline has not judged the rows of this snapshot: run it")
    return expectation_verdict(check.expectation, found)


def expectation_verdict(check: v1.ExpectationCheck, found: tuple[int, int], *, is_published: bool = True) -> Verdict:
    """The result of an expectation for rows that a run has judged."""
    broken, rows = found
    observed = f"{broken} of {rows} rows break it"
    if not broken:
        return Verdict(v1.RST_PASSED, v1.RMT_EXACT, observed)
    done = "these rows are in quarantine" if check.on_failure == "drop" else "they were published"
    if not is_published:
        done = "the new rows were not published"
    return Verdict(v1.RST_FAILED, v1.RMT_EXACT, observed, f"expected: {check.expected}; {done}")


def stored_verdicts(found: Verdicts) -> dict[str, str]:
    """Verdicts as properties of a snapshot."""
    listed = {name: list(each) for name, each in found.items()}
    return {VERDICTS: json.dumps(listed, separators=(",", ":"))} if listed else {}


def read_verdicts(summary: Mapping[str, str]) -> Verdicts:
    """The verdicts in the summary of a snapshot; empty if there are none, or if they cannot be read."""
    try:
        return {str(name): (int(broken), int(rows)) for name, (broken, rows) in json.loads(summary[VERDICTS]).items()}
    except (KeyError, ValueError, AttributeError, TypeError):
        return {}


_JUDGES: Final = {
    judge.__name__.removeprefix("_"): judge
    for judge in (
        *(_row_count, _null_share, _distinct_count, _range, _quantile),
        *(_freshness, _allowed_values, _unique, _schema, _expectation),
    )
}
"""The function for each kind of rule."""


# --- values and their texts -------------------------------------------------------------------------------------------


def _known(found: Interval | None, facts: TableFacts, what: str) -> Interval:
    if found is None:
        raise Unmeasured(facts.unmeasured or f"the profile does not include the {what}: profile the table again")
    return found


def _given(rule: Any, *names: str) -> list[Any]:
    """The limits of a rule; None for one that it does not have."""
    return [getattr(rule, name) if rule.HasField(name) else None for name in names]


def _values(rule: v1.RangeCheck | v1.QuantileCheck, of: LogicalType) -> list[Any]:
    """The limits of a rule as values of a type."""
    return [None if text is None else bound(of, text).value for text in _given(rule, "min", "max")]


def _shown(found: Interval) -> str:
    low, high = (None if each is None else round(each) for each in (found.low, found.high))
    return str(low) if low == high else f"{low or 0} to {'any number' if high is None else high}"


def _limits(least: object, most: object) -> str:
    parts = [f"at least {least}"] if least is not None else []
    parts += [f"at most {most}"] if most is not None else []
    return " and ".join(parts)


def _listed(values: Sequence[str]) -> str:
    more = f" or {len(values) - SHOWN} others" if len(values) > SHOWN else ""
    return json.dumps(list(values[:SHOWN]), ensure_ascii=False)[1:-1] + more


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def age_of(age: timedelta) -> str:
    """An age in its largest unit."""
    seconds = int(age.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
