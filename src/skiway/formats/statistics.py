"""Column statistics of units of rows (files or row groups), and the units that remain for a filter.

The statistics of a unit are one Arrow struct per column.

A table of units has a column `stats`, a struct with one child per primitive column, named after the field id:

    value_count, null_count, nan_count   int64; `value_count` includes NULL and NaN; NULL if unknown
    min, max                             of the column's type; all values other than NaN lie between them; NULL if unknown
    exact                                whether `min` and `max` occur in the column, rather than being just bounds

A unit is left out only if its statistics prove that the filter is true for none of its rows. Unknown statistics prove
nothing, and neither do parts of the filter that cannot be translated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters.arrow import constants, join_balanced, literal_type
from skiway.airport.filters.nodes import (
    ColumnRef,
    Compare,
    Comparison,
    Constant,
    Filter,
    Function,
    LogicalType,
    Node,
    Operator,
    type_of,
)
from skiway.airport.filters.translation import (
    Inexpressible,
    column_path,
    constant_right,
    like_parts,
    literal_prefix,
    translate,
)
from skiway.formats.schemas import leaves

_COUNTS = ("value_count", "null_count", "nan_count")
_NAMES = (*_COUNTS, "min", "max", "exact")
_ROWS_AT_ONCE = 1 << 20  # units of all columns that are merged together


def bound_type(of: pa.DataType) -> pa.DataType:
    """The type of the bounds of a column of type `of`."""
    if pa.types.is_dictionary(of):
        of = of.value_type
    if isinstance(of, pa.BaseExtensionType):
        of = of.storage_type
    if of in (pa.large_string(), pa.string_view()):
        return pa.string()
    if pa.types.is_decimal(of) and of.precision <= 38:
        return pa.decimal128(of.precision, of.scale)  # Arrow supports few computations on other decimal types
    return pa.binary() if of in (pa.large_binary(), pa.binary_view()) else of


def column_stats(of: pa.DataType, units: int, *, exact: bool | pa.Array = False, **known: pa.Array) -> pa.StructArray:
    """The statistics of one column in all units; figures that are not given are unknown."""
    bounds = bound_type(of)
    if not pa.types.is_floating(of):
        known["nan_count"] = pa.repeat(pa.scalar(0, pa.int64()), units)
    parts = [known.get(name, pa.nulls(units, pa.int64())) for name in _COUNTS]
    low, high = (_without_nan(known.get(name, pa.nulls(units, bounds))) for name in ("min", "max"))
    parts += [low, high]
    flags = pc.and_(low.is_valid(), pa.scalar(exact) if isinstance(exact, bool) else exact)
    return pa.StructArray.from_arrays([*parts, flags], names=_NAMES)


def _without_nan(bounds: pa.Array) -> pa.Array:
    if not pa.types.is_floating(bounds.type):
        return bounds
    return pc.if_else(pc.fill_null(pc.is_nan(bounds), False), pa.scalar(None, bounds.type), bounds)


def constant_stats(values: pa.Array, row_counts: pa.Array) -> pa.StructArray:
    """The statistics of a column with a single value per unit, such as a partition column."""
    nulls = pc.if_else(values.is_null(), row_counts, pa.scalar(0, pa.int64()))
    is_nan = pc.fill_null(pc.is_nan(values), False) if pa.types.is_floating(values.type) else None
    nans = {} if is_nan is None else {"nan_count": pc.if_else(is_nan, row_counts, 0)}
    bounds = values.cast(bound_type(values.type))
    return column_stats(
        values.type, len(values), exact=True, value_count=row_counts, null_count=nulls, min=bounds, max=bounds, **nans
    )


def merged_stats(stats: pa.StructArray) -> pa.StructArray:
    """Merge the statistics of all units into those of one."""

    def total(name: str) -> Any:
        return pc.sum(stats.field(name), skip_nulls=False, min_count=0)

    empty = _has_no_bounds(stats)
    counted = {name: total(name) for name in _COUNTS}
    # A bound is known if every unit has it, or has no values that bounds cover.
    bounds = {name: stats.field(name) for name in ("min", "max")}
    known = all(pc.all(pc.or_(empty, bound.is_valid()), min_count=0).as_py() for bound in bounds.values())
    low, high = (pc.min(bounds["min"]), pc.max(bounds["max"])) if known else (pa.scalar(None, bounds["min"].type),) * 2
    exact = pa.scalar(bool(known and pc.all(pc.or_(empty, stats.field("exact")), min_count=0).as_py()))
    scalars = [*counted.values(), low, high, exact]
    return pa.StructArray.from_arrays([pa.array([value], value.type) for value in scalars], names=_NAMES)


def _has_no_bounds(stats: pa.StructArray) -> pa.Array:
    """The units that have only NULL and NaN, which bounds do not cover."""
    others = pc.add(stats.field("null_count"), pc.fill_null(stats.field("nan_count"), 0))
    return pc.fill_null(pc.equal(others, stats.field("value_count")), False)


def merged_units(stats: pa.StructArray, *, rows_at_once: int = _ROWS_AT_ONCE) -> pa.StructArray:
    """Merge a column `stats` into one row, which has for each column what `merged_stats` returns.

    Columns of the same type are merged together, in a few calls, up to `rows_at_once` units at a time.
    """
    if not len(stats) or not stats.type.num_fields:
        return stats_struct({int(name): merged_stats(stats.field(name)) for name in stats.type.names}, 1)
    alike: dict[pa.DataType, list[int]] = {}
    for place, field in enumerate(stats.type):
        alike.setdefault(field.type, []).append(place)
    merged: dict[int, pa.StructArray] = {}
    step = max(rows_at_once // len(stats), 1)
    for of, places in alike.items():
        for start in range(0, len(places), step):
            some = places[start : start + step]
            found = _merged_alike([stats.field(place) for place in some], of.field("min").type)
            merged |= {place: found.slice(row, 1) for row, place in enumerate(some)}
    return pa.StructArray.from_arrays([merged[place] for place in range(len(merged))], names=stats.type.names)


def _merged_alike(columns: Sequence[pa.StructArray], of: pa.DataType) -> pa.StructArray:
    """Merge columns whose bounds have the type `of`: a row per column."""
    units = pa.concat_arrays(columns)
    parts = dict(zip(_NAMES, units.flatten(), strict=True))
    empty = _has_no_bounds(units)
    known = pc.and_(pc.or_(empty, parts["min"].is_valid()), pc.or_(empty, parts["max"].is_valid()))
    rows = pa.table(
        {
            **{name: parts[name] for name in _COUNTS},
            "min": parts["min"] if not pa.types.is_float16(of) else pa.nulls(len(units)),  # Arrow cannot compare them
            "max": parts["max"] if not pa.types.is_float16(of) else pa.nulls(len(units)),
            "known": known,
            "exact": pc.or_(empty, parts["exact"]),
            "column": pa.array(np.repeat(np.arange(len(columns)), len(columns[0]))),
        }
    )
    totals = [(name, "sum", pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)) for name in _COUNTS]
    ends = [("min", "min"), ("max", "max"), ("known", "all"), ("exact", "all")]
    # Without threads, the groups are in the order of the columns.
    found = rows.group_by("column", use_threads=False).aggregate([*totals, *ends]).combine_chunks()
    is_known = found["known_all"].combine_chunks()
    nothing = pa.scalar(None, of)
    low, high = (
        pc.if_else(is_known, found[f"{name}_{name}"].combine_chunks().cast(of), nothing) for name in ("min", "max")
    )
    counts = [found[f"{name}_sum"].combine_chunks() for name in _COUNTS]
    exact = pc.and_(is_known, found["exact_all"].combine_chunks())
    return pa.StructArray.from_arrays([*counts, low, high, exact], names=_NAMES)


def stats_struct(columns: Mapping[int, pa.StructArray], units: int) -> pa.StructArray:
    """The column `stats` of a table of units."""
    if not columns:
        return pa.nulls(units, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names=[str(number) for number in columns])


_Mask: TypeAlias = pa.Array | pa.BooleanScalar
"""Which units may match; a scalar if the answer is the same for all."""

_MAX_CONDITIONS: Final = 500
_MAX_VALUES: Final = 64  # of an IN that are tested one by one; beyond, only their range is


def pruned(units: pa.Table, filter: Filter | None, schema: pa.Schema) -> pa.Table:  # noqa: A002
    """The rows of `units`, a table with a column `stats`, whose unit may have rows that match `filter`.

    `schema` has the columns that the filter refers to, with their ids.
    """
    if not filter or not units.num_rows:
        return units
    # Conditions are computed on the arrays. As an expression for `units.filter` they would take an Acero plan: 0.7 ms.
    maybe = translate(
        filter,
        _Maybe(schema, units["stats"].combine_chunks()).condition,
        all_of=join_balanced(pc.and_kleene),
        any_of=join_balanced(pc.or_kleene),
        limit=_MAX_CONDITIONS,
    )
    if maybe is None:
        return units
    if isinstance(maybe, pa.Scalar):
        return units if maybe.as_py() else units.slice(0, 0)
    return units if pc.all(maybe, min_count=0).as_py() else units.filter(maybe)


@dataclass(frozen=True, slots=True)
class ColumnUnits:
    """The statistics of a column in all units, with their counts and bounds: which units may have rows of some kind?"""

    stats: pa.StructArray

    def __getitem__(self, name: str) -> pa.Array:
        return pc.struct_field(self.stats, name)  # NULL where the statistics are

    @property
    def type(self) -> pa.DataType:
        """The type of the bounds."""
        return self.stats.type.field("min").type

    @property
    def has_values(self) -> _Mask:
        """Units that may have values other than NULL."""
        return _true_if_unknown(pc.less(self["null_count"], self["value_count"]))

    @property
    def has_nulls(self) -> _Mask:
        """Units that may have NULL."""
        return _true_if_unknown(pc.greater(self["null_count"], 0))

    @property
    def has_nan(self) -> _Mask:
        """Units that may have NaN, which is greater than every number and which bounds do not cover."""
        is_float = pa.types.is_floating(self.type)
        return _true_if_unknown(pc.greater(self["nan_count"], 0)) if is_float else pa.scalar(False)

    def compared(self, op: str, value: pa.Scalar) -> _Mask:
        """Units that may have a value for which the comparison is true; `op` is that of SQL."""
        match op:
            case Compare.EQ:
                maybe = self._between(value, value)
            case Compare.LT:
                maybe = _true_if_unknown(pc.less(self["min"], value))
            case Compare.LE:
                maybe = _true_if_unknown(pc.less_equal(self["min"], value))
            case Compare.GT:
                maybe = pc.or_(_true_if_unknown(pc.greater(self["max"], value)), self.has_nan)
            case Compare.GE:
                maybe = pc.or_(_true_if_unknown(pc.greater_equal(self["max"], value)), self.has_nan)
            case _:
                differs = pc.or_kleene(pc.not_equal(self["min"], value), pc.not_equal(self["max"], value))
                maybe = pc.or_(_true_if_unknown(differs), self.has_nan)
        return pc.and_(maybe, self.has_values)

    def spanned(self, values: pa.Array) -> _Mask:
        """Units that may have a value between the least and the greatest of these, including them."""
        ends = pc.min_max(values)
        return pc.and_(self._between(ends["min"], ends["max"]), self.has_values)

    def among(self, values: pa.Array) -> _Mask:
        """Units that may have one of these values; if they are many, or another one between them."""
        if len(values) > _MAX_VALUES:
            return self.spanned(values)
        maybe = join_balanced(pc.or_)([self._between(value, value) for value in values])
        return pc.and_(maybe, self.has_values)

    def _between(self, low: pa.Scalar, high: pa.Scalar) -> pa.Array:
        from_low, to_high = pc.greater_equal(self["max"], low), pc.less_equal(self["min"], high)
        return pc.and_(_true_if_unknown(from_low), _true_if_unknown(to_high))


def _true_if_unknown(condition: pa.Array) -> pa.Array:
    return pc.fill_null(condition, True)


class _Maybe:
    """Computes for a filter node and each unit: may it be true for some row of the unit?"""

    def __init__(self, schema: pa.Schema, stats: pa.StructArray) -> None:
        self.columns = {leaf.path: str(leaf.id) for leaf in leaves(schema)}
        self.stats = stats

    def condition(self, node: Node) -> _Mask:
        match node:
            case Constant(None | bool() as value, LogicalType("BOOLEAN")):
                return pa.scalar(bool(value))
            case Comparison():
                return self.comparison(constant_right(node))
            case ColumnRef() | Function("struct_extract") if _is_boolean(node):
                return self.column(node).compared(Compare.EQ, pa.scalar(True))
            case Operator("NOT", ((ColumnRef() | Function("struct_extract")) as child,)) if _is_boolean(child):
                return self.column(child).compared(Compare.EQ, pa.scalar(False))
            case Operator("IS NULL", (child,)):
                return self.column(child).has_nulls
            case Operator("IS NOT NULL", (child,)):
                return self.column(child).has_values
            case Operator("IN", (probe, *among)):
                return self.among(probe, among)
            case Function():
                return self.prefixed(node)
            case _:
                raise Inexpressible

    def column(self, node: Node) -> ColumnUnits:
        number = self.columns.get(column_path(node), "")
        place = self.stats.type.get_field_index(number)
        of = type_of(node)
        if place < 0 or of is None or of.alias not in ("", "JSON") or of.collation:
            raise Inexpressible
        return ColumnUnits(pc.struct_field(self.stats, [place]))

    def literal(self, node: Node, compared_with: Node) -> pa.Scalar:
        return self.literals([node], compared_with)[0]

    def literals(self, nodes: Sequence[Node], compared_with: Node) -> pa.Array:
        of = type_of(compared_with)
        assert of is not None
        values = constants(nodes, literal_type(of, self.column(compared_with).type))
        if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            raise Inexpressible  # bounds exclude NaN
        return values

    def comparison(self, node: Comparison) -> _Mask:
        column = self.column(node.left)
        match node.op, node.right:
            case Compare.NOT_DISTINCT, Constant(None):
                return column.has_nulls
            case Compare.DISTINCT, Constant(None):
                return column.has_values
            case _, Constant(None):
                return pa.scalar(False)  # NULL on every row
            case Compare.DISTINCT, Constant():
                return pc.or_(column.compared(Compare.NE, self.literal(node.right, node.left)), column.has_nulls)
            case op, Constant():
                op = Compare.EQ if op is Compare.NOT_DISTINCT else op
                return column.compared(op, self.literal(node.right, node.left))
            case _:
                raise Inexpressible

    def among(self, probe: Node, among: Sequence[Node]) -> _Mask:
        present = [one for one in among if not (isinstance(one, Constant) and one.value is None)]
        return self.column(probe).among(self.literals(present, probe)) if present else pa.scalar(False)

    def prefixed(self, node: Function) -> _Mask:
        """Strings with a common prefix are adjacent in sort order."""
        match node:
            case Function("prefix" | "starts_with", (text, Constant(str() as prefix)), _, True):
                pass
            case _:
                text, pattern, escape = like_parts(node)
                prefix = literal_prefix(pattern, escape)
        column = self.column(text)
        if not prefix or column.type != pa.string():
            raise Inexpressible
        maybe = pc.and_(_true_if_unknown(pc.greater_equal(column["max"], prefix)), column.has_values)
        after = _following(prefix)
        return maybe if after is None else pc.and_(maybe, _true_if_unknown(pc.less(column["min"], after)))


def _following(prefix: str) -> str | None:
    """The smallest string greater than all that begin with `prefix`; None if there is none."""
    last = ord(prefix[-1]) + 1
    return None if last > 0x10FFFF or 0xD800 <= last <= 0xDFFF else prefix[:-1] + chr(last)


def _is_boolean(node: Node) -> bool:
    of = type_of(node)
    return of is not None and of.id == "BOOLEAN"
