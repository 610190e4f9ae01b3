"""Predicates applied to rows, with DuckDB's meaning of NULL and NaN.

Servers treat a filter as a hint and may send more rows than it keeps, so DuckDB filters again; so do we.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.client.literals import literal, value_type
from skiway.client.predicates import And, Between, Column, Comparison, In, IsNull, Not, Op, Or, Predicate
from skiway.errors import InvalidArgument

__all__ = ["kept"]

_KERNELS: Final[dict[Op, Callable[[Any, Any], pa.Array]]] = {
    Op.EQUAL: pc.equal,
    Op.NOT_EQUAL: pc.not_equal,
    Op.LESS: pc.less,
    Op.GREATER: pc.greater,
    Op.LESS_OR_EQUAL: pc.less_equal,
    Op.GREATER_OR_EQUAL: pc.greater_equal,
}

# In DuckDB NaN equals NaN and is greater than all other numbers. So these are true of a NaN beside another number,
_TRUE_OF_NAN: Final = frozenset({Op.NOT_EQUAL, Op.GREATER, Op.GREATER_OR_EQUAL})
# and beside the constant NaN a comparison is made of "is NaN", which is NULL for NULL.
_BESIDE_NAN: Final[dict[Op, Callable[[pa.Array], pa.Array]]] = {
    Op.EQUAL: lambda is_nan: is_nan,
    Op.GREATER_OR_EQUAL: lambda is_nan: is_nan,
    Op.NOT_EQUAL: pc.invert,
    Op.LESS: pc.invert,
    Op.LESS_OR_EQUAL: lambda is_nan: pc.or_(is_nan, pc.invert(is_nan)),
    Op.GREATER: lambda is_nan: pc.and_(is_nan, pc.invert(is_nan)),
}


def kept(predicate: Predicate, batch: pa.RecordBatch, positions: Mapping[str, int]) -> pa.Array:
    """True, false or NULL per row of `batch`; `positions` are those of the predicate's columns."""

    def mask(part: Predicate) -> pa.Array:
        return kept(part, batch, positions)

    def values(name: str) -> pa.Array:
        return _plain(batch.column(positions[name]))

    def scalar(name: str, value: Any) -> pa.Scalar:
        return literal(batch.schema.field(positions[name]), value)

    match predicate:
        case Column(name):
            return values(name).cast(pa.bool_())
        case Comparison(op, name, value):
            return _compare(op, values(name), scalar(name, value))
        case Between(name, low, high):
            column = values(name)
            return pc.and_kleene(
                _compare(Op.GREATER_OR_EQUAL, column, scalar(name, low)),
                _compare(Op.LESS_OR_EQUAL, column, scalar(name, high)),
            )
        case In(name, among, negated):
            return _among(values(name), [scalar(name, value) for value in among], negated=negated)
        case IsNull(name, negated):
            column = batch.column(positions[name])
            return pc.is_valid(column) if negated else pc.is_null(column)
        case Not(part):
            return pc.invert(mask(part))
        case And(parts):
            return _joined(pc.and_kleene, [mask(part) for part in parts])
        case Or(parts):
            return _joined(pc.or_kleene, [mask(part) for part in parts])
    raise InvalidArgument(f"{predicate!r} is not a predicate: build one with col(…)")


def _plain(column: pa.Array) -> pa.Array:
    """The values themselves: no extension type, no dictionary around them."""
    if isinstance(column, pa.ExtensionArray):
        return _plain(column.storage)
    wanted = value_type(column.type)
    if wanted == column.type:
        return column
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else pc.run_end_decode(column)


def _compare(op: Op, column: pa.Array, value: pa.Scalar) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return _KERNELS[op](column, value)
    is_nan = pc.is_nan(column)
    if math.isnan(value.as_py()):
        return _BESIDE_NAN[op](is_nan)
    compared = _KERNELS[op](column, value)
    return pc.or_kleene(compared, is_nan) if op in _TRUE_OF_NAN else compared


def _among(column: pa.Array, values: list[pa.Scalar], *, negated: bool) -> pa.Array:
    # one comparison per value would be slow for long lists; is_in needs care where NULL or NaN must not be "false"
    known = pa.array([value.as_py() for value in values], column.type)
    found = pc.is_in(column, value_set=known)
    found = pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), found)
    return pc.invert(found) if negated else found


def _joined(join: Callable[[Any, Any], pa.Array], masks: list[pa.Array]) -> pa.Array:
    joined = masks[0]
    for mask in masks[1:]:
        joined = join(joined, mask)
    return joined
