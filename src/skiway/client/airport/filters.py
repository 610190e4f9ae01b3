"""The columns and the filter of a scan, as DuckDB requests them.

A predicate becomes the filter JSON that DuckDB sends. The client also evaluates it on the record batches that it receives.

The JSON has the same members in the same order as DuckDB's. A server may ignore a filter and send more rows, so DuckDB
filters again, and so does this client, with DuckDB's semantics of NULL and NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.airport.wire.protocol import ROWID_COLUMN
from skiway.client.airport.calls import ROWID, Table
from skiway.client.airport.predicates import (
    And,
    Between,
    Column,
    Comparison,
    In,
    IsNull,
    Not,
    Op,
    Or,
    Predicate,
    json_value,
    literal,
    value_type,
)
from skiway.errors import InvalidArgument

NO_LOCATION: Final = 0xFFFF_FFFF_FFFF_FFFF  # DuckDB's query_location of an expression without a position in the SQL
_BOOLEAN: Final = {"id": "BOOLEAN", "type_info": None}

Node = dict[str, Any]


def filter_json(predicate: Predicate | None, names: Sequence[str], fields: Mapping[str, pa.Field]) -> str:
    """Return the value of `json_filters`. `names` are the columns of the scan in order; `fields` have their types."""
    parts = () if predicate is None else predicate.parts if isinstance(predicate, And) else (predicate,)
    writer = _Writer(list(names), fields)
    document = {"filters": [writer.node(part) for part in parts], "column_binding_names_by_index": list(names)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Writer:
    names: list[str]
    fields: Mapping[str, pa.Field]

    def node(self, predicate: Predicate) -> Node:
        match predicate:
            case Column(name):
                return self._truth(name)
            case Comparison(op, name, value):
                sides = {"left": self._reference(name), "right": self._constant(name, value)}
                return _expression("BOUND_COMPARISON", op.value) | sides
            case Between(name, low, high):
                return _expression("BOUND_BETWEEN", "COMPARE_BETWEEN") | {
                    "input": self._reference(name),
                    "lower": self._constant(name, low),
                    "upper": self._constant(name, high),
                    "lower_inclusive": True,
                    "upper_inclusive": True,
                }
            case In(name, values, negated):
                children = [self._reference(name), *(self._constant(name, value) for value in values)]
                return _operator("COMPARE_NOT_IN" if negated else "COMPARE_IN", children)
            case IsNull(name, negated):
                return _operator("OPERATOR_IS_NOT_NULL" if negated else "OPERATOR_IS_NULL", [self._reference(name)])
            case Not(part):
                return _operator("OPERATOR_NOT", [self.node(part)])
            case And(parts) | Or(parts):
                kind = "CONJUNCTION_AND" if isinstance(predicate, And) else "CONJUNCTION_OR"
                return _expression("BOUND_CONJUNCTION", kind) | {"children": [self.node(part) for part in parts]}
        raise InvalidArgument(f"{predicate!r} is not a predicate: build one with col(…)")

    def _truth(self, name: str) -> Node:
        if (type_name := duckdb_type(self.fields[name])) != "BOOLEAN":
            raise InvalidArgument(f"column {name!r} is {type_name}, not BOOLEAN: compare it with a value")
        return self._reference(name)

    def _reference(self, name: str) -> Node:
        return _expression("BOUND_COLUMN_REF", "BOUND_COLUMN_REF", alias=name) | {
            "return_type": logical_type(self.fields[name]),
            "binding": {"table_index": 0, "column_index": self.names.index(name)},
            "depth": 0,
        }

    def _constant(self, name: str, value: Any) -> Node:
        field = self.fields[name]
        constant = {
            "type": logical_type(field),
            "is_null": False,
            "value": json_value(field, literal(field, value)),
        }
        return _expression("BOUND_CONSTANT", "VALUE_CONSTANT") | {"value": constant}


def _expression(kind: str, type_name: str, alias: str = "") -> Node:
    return {"expression_class": kind, "type": type_name, "alias": alias, "query_location": NO_LOCATION}


def _operator(type_name: str, children: list[Node]) -> Node:
    return _expression("BOUND_OPERATOR", type_name) | {"return_type": _BOOLEAN, "children": children}


def logical_type(field: pa.Field) -> Node:
    """Return the DuckDB type of a column, as filter JSON represents it."""
    type_name = duckdb_type(field)
    stored = storage_type(field.type)
    if pa.types.is_dictionary(stored) or pa.types.is_run_end_encoded(stored):
        return logical_type(pa.field(field.name, stored.value_type))
    if type_name in ("JSON", "GEOMETRY"):
        return _type("VARCHAR" if type_name == "JSON" else "BLOB", "GENERIC_TYPE_INFO", alias=type_name)
    if type_name.startswith("DECIMAL"):
        return _type("DECIMAL", "DECIMAL_TYPE_INFO", width=stored.precision, scale=stored.scale)
    return _nested_type(stored) or {"id": type_name, "type_info": None}


def _nested_type(stored: pa.DataType) -> Node | None:
    types = pa.types
    if types.is_map(stored):
        return _type(
            "MAP", "LIST_TYPE_INFO", child_type=_struct([("key", stored.key_field), ("value", stored.item_field)])
        )
    if types.is_fixed_size_list(stored):
        return _type("ARRAY", "ARRAY_TYPE_INFO", child_type=logical_type(stored.value_field), size=stored.list_size)
    if types.is_nested(stored) and hasattr(stored, "value_field"):
        return _type("LIST", "LIST_TYPE_INFO", child_type=logical_type(stored.value_field))
    members = [(stored.field(i).name, stored.field(i)) for i in range(stored.num_fields)]
    if types.is_struct(stored):
        return _struct(members)
    if types.is_union(stored):
        return _struct([("", pa.field("", pa.uint8())), *members], name="UNION")
    return None


def _struct(members: Sequence[tuple[str, pa.Field]], name: str = "STRUCT") -> Node:
    children = [{"first": member, "second": logical_type(field)} for member, field in members]
    return _type(name, "STRUCT_TYPE_INFO", child_types=children)


def _type(name: str, info: str, *, alias: str = "", **facts: Any) -> Node:
    return {"id": name, "type_info": {"type": info, "alias": alias, "extension_info": None, **facts}}


# -- evaluation --------------------------------------------------------------------------------------------------------


_KERNELS: Final[dict[Op, Callable[[Any, Any], pa.Array]]] = {
    Op.EQUAL: pc.equal,
    Op.NOT_EQUAL: pc.not_equal,
    Op.LESS: pc.less,
    Op.GREATER: pc.greater,
    Op.LESS_OR_EQUAL: pc.less_equal,
    Op.GREATER_OR_EQUAL: pc.greater_equal,
}

# In DuckDB NaN equals NaN and is greater than any other number. So these comparisons of NaN with a number are true,
_TRUE_FOR_NAN: Final = frozenset({Op.NOT_EQUAL, Op.GREATER, Op.GREATER_OR_EQUAL})
# and comparisons with the constant NaN are derived from "is NaN", which is NULL for NULL.
_COMPARE_WITH_NAN: Final[dict[Op, Callable[[pa.Array], pa.Array]]] = {
    Op.EQUAL: lambda is_nan: is_nan,
    Op.GREATER_OR_EQUAL: lambda is_nan: is_nan,
    Op.NOT_EQUAL: pc.invert,
    Op.LESS: pc.invert,
    Op.LESS_OR_EQUAL: lambda is_nan: pc.or_(is_nan, pc.invert(is_nan)),
    Op.GREATER: lambda is_nan: pc.and_(is_nan, pc.invert(is_nan)),
}


def filter_mask(predicate: Predicate, batch: pa.RecordBatch, positions: Mapping[str, int]) -> pa.Array:
    """Return true, false or NULL for each row of `batch`; `positions` are those of the predicate's columns."""

    def mask(part: Predicate) -> pa.Array:
        return filter_mask(part, batch, positions)

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
            return _is_in(values(name), [scalar(name, value) for value in among], negated=negated)
        case IsNull(name, negated):
            column = batch.column(positions[name])
            return pc.is_valid(column) if negated else pc.is_null(column)
        case Not(part):
            return pc.invert(mask(part))
        case And(parts):
            return _combine(pc.and_kleene, [mask(part) for part in parts])
        case Or(parts):
            return _combine(pc.or_kleene, [mask(part) for part in parts])
    raise InvalidArgument(f"{predicate!r} is not a predicate: build one with col(…)")


def _plain(column: pa.Array) -> pa.Array:
    """Return the plain values, without extension type or dictionary."""
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
        return _COMPARE_WITH_NAN[op](is_nan)
    compared = _KERNELS[op](column, value)
    return pc.or_kleene(compared, is_nan) if op in _TRUE_FOR_NAN else compared


def _is_in(column: pa.Array, values: list[pa.Scalar], *, negated: bool) -> pa.Array:
    # One comparison per value would be slow for long lists. is_in() is false for NULL, which must stay NULL.
    value_set = pa.array(values, column.type)
    is_member = pc.is_in(column, value_set=value_set)
    is_member = pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), is_member)
    return pc.invert(is_member) if negated else is_member


def _combine(join: Callable[[Any, Any], pa.Array], masks: list[pa.Array]) -> pa.Array:
    combined = masks[0]
    for mask in masks[1:]:
        combined = join(combined, mask)
    return combined


Where = Predicate | str | None


@dataclass(frozen=True)
class Selection:
    """The columns and the filter of a scan of `table`.

    `columns` are those of the result; None selects all visible ones. As in DuckDB, the columns of the filter are requested
    before them and dropped from the result. A filter given as JSON is sent unchanged and is not applied again here.
    The columns in `repeated` are requested last, each once more even if it is among the others, as UPDATE and DELETE do.
    """

    table: Table
    columns: Sequence[str] | None
    where: Where
    repeated: Sequence[str] = ()

    @cached_property
    def positions(self) -> list[int]:
        """The columns of the result, as positions in the table's schema."""
        return [*self._selected, *(self.table.position(name) for name in self.repeated)]

    @cached_property
    def _selected(self) -> list[int]:
        names = self.table.columns if self.columns is None else self.columns
        return [self.table.position(name) for name in names]

    @cached_property
    def filter_columns(self) -> dict[str, int]:
        """The columns of the filter, by the names it uses, with their positions."""
        if not isinstance(self.where, Predicate):
            return {}
        return {name: self.table.position(name) for name in self.where.columns()}

    @cached_property
    def referenced(self) -> list[int]:
        """All columns that the scan needs, each once, followed by the repeated ones."""
        once = dict.fromkeys([*self.filter_columns.values(), *self._selected])
        return [*once, *self.positions[len(self._selected) :]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return pa.schema([self._field(position) for position in self.positions])

    def column_ids(self) -> list[int]:
        """The referenced columns as DuckDB numbers them. A scan that needs no column still has to request one."""
        if not self.referenced:
            return [ROWID_COLUMN] if self.table.rowid is not None else [0] if self.table.columns else []
        return [self._column_id(position) for position in self.referenced]

    def json_filters(self) -> str:
        """The filter as JSON, including the names of the columns that it refers to by number."""
        if isinstance(self.where, str):
            return _check_json_filter(self.where)
        names = [self._field(position).name for position in self.referenced]
        aliases = {name: self._field(position) for name, position in self.filter_columns.items()}
        return filter_json(self.where, names, aliases)

    def statistics_columns(self) -> list[int]:
        """The columns whose statistics DuckDB requests: each referenced column twice, or the first column if only rows are counted."""
        if not self.referenced:
            return (
                [] if self.table.rowid is not None else [self.table.position(name) for name in self.table.columns[:1]]
            )
        return [position for position in dict.fromkeys(self.referenced) if position != self.table.rowid] * 2

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows and the selected columns of a batch that has all columns of the table."""
        selected = batch.select(self.positions)
        if isinstance(self.where, Predicate):
            mask = filter_mask(self.where, batch, self.filter_columns)
            selected = selected.filter(mask) if self.positions else selected.slice(0, mask.true_count)
        return pa.RecordBatch.from_arrays(selected.columns, schema=self.schema) if self.positions else selected

    def _field(self, position: int) -> pa.Field:
        field = self.table.schema.field(position)
        return field.with_name(ROWID) if position == self.table.rowid else field

    def _column_id(self, position: int) -> int:
        rowid = self.table.rowid
        if position == rowid:
            return ROWID_COLUMN
        return position if rowid is None or position < rowid else position - 1


def _check_json_filter(text: str) -> str:
    try:
        document = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidArgument(f"where= is not valid filter JSON: {error}; build a predicate with col(…)") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"where= is a JSON {type(document).__name__}, expected an object with 'filters'")
    return text


def select(table: Table, columns: Sequence[str] | None, where: Where) -> Selection:
    """Return a validated selection: errors in names and values surface before any request is sent."""
    if isinstance(columns, str):
        raise InvalidArgument(f"columns={columns!r} is a string; give a list of names: [{columns!r}]")
    selection = Selection(table, columns, where)
    selection.json_filters()
    return selection
