"""What a server of Flight SQL tells about itself: GetSqlInfo, and the types of GetXdbcTypeInfo.

The numbers are those of Flight SQL's `SqlInfo`, and the types of `XdbcDataType`. JDBC drivers need a value for every number: they
fail without one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa

from skiway import __version__

_VALUE: Final = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.field("string_data", pa.string()))),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.field("$data$", pa.int32())))),
    ]
)
_STRING, _BOOL, _BIGINT, _INT32, _STRINGS, _MAP = range(6)


_KINDS: Final = {"": pa.string(), "i": pa.int32(), "bool": pa.bool_(), "byte": pa.uint8()}


def layout(columns: str) -> pa.Schema:
    """Columns with these names. They are texts, unless a name is followed by a kind, and nullable with a question mark."""
    named = [each.partition(":") for each in columns.split()]
    return pa.schema([pa.field(name.rstrip("?"), _KINDS[kind], nullable="?" in name) for name, _, kind in named])


SQL_INFO: Final = pa.schema(
    [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _VALUE, nullable=False)]
)

_ITEMS: Final = pa.field("create_params", pa.list_(pa.field("item", pa.string(), nullable=False)))
TYPES: Final = layout(
    "type_name data_type:i column_size?:i literal_prefix? literal_suffix? create_params? nullable:i case_sensitive:bool "
    "searchable:i unsigned_attribute?:bool fixed_prec_scale:bool auto_increment?:bool local_type_name? minimum_scale?:i "
    "maximum_scale?:i sql_data_type:i datetime_subcode?:i num_prec_radix?:i interval_precision?:i"
).set(5, _ITEMS)

_TRUE: Final = {
    *(3, 4),  # read-only, SQL
    *(506, 515, 516, 518),  # all tables are readable; aliases of columns and tables; NULL plus anything is NULL
    *(520, 521, 523, 524),  # ORDER BY with expressions and with other columns; LIKE with ESCAPE; NOT NULL
    *(532, 539, 556, 574),  # catalogs come first in names; correlated subqueries; rows with BLOBs; named parameters
}
_FALSE: Final = {
    *(5, 9),  # Substrait, CancelQuery: clients cancel the call instead
    *(500, 501, 502),  # CREATE and DROP of catalogs, schemas and tables
    *(519, 527, 536, 537),  # aliases need not differ from names; keys; SELECT FOR UPDATE; stored procedures
    *(563, 565, 566),  # transactions, and DDL in them
    *(572, 573, 575, 576),  # batches of updates; savepoints; locators; CALL
}
_NUMBERS: Final = {
    8: 0,  # no transactions
    **dict.fromkeys((503, 505), 1),  # identifiers are case-insensitive, and so are quoted ones
    507: 3,  # NULL comes last
    **dict.fromkeys((522, 540), 0b11),  # GROUP BY; UNION and UNION ALL
    525: 0b111,  # grammar: minimum, core and extended
    528: 0b110,  # outer joins: limited and full
    538: 0b1111,  # subqueries: in comparisons, EXISTS, IN and with quantifiers
    **dict.fromkeys((533, 534, 535, 570, 571), 0),  # names in statements that are refused here; positions; scrolling
    **dict.fromkeys((526, 564), 0b1),  # SQL-92: entry level; isolation: none
    **dict.fromkeys((567, 568, 569), 0b10),  # results are read forward, and cannot be updated
}
_LIMITS: Final = {**dict.fromkeys((*range(541, 556), *range(558, 563)), 0), 557: 1 << 20}
"""Maximum lengths and numbers, which are 0 if they are not known, and the characters of a statement."""

_TEXTS: Final = {
    0: "Skiway",
    1: __version__,
    2: pa.__version__,
    504: '"',
    **dict.fromkeys((513, 514), ""),  # patterns of listings have no escape character, and names no further ones
    529: "schema",
    530: "function",
    531: "catalog",
}
_LISTS: Final = {
    508: "ASOF PIVOT QUALIFY SAMPLE UNPIVOT",
    509: "ABS CEIL EXP FLOOR GREATEST LEAST LN LOG10 MOD POWER ROUND SIGN SQRT",
    510: "CONCAT LEFT LENGTH LOWER LTRIM REPLACE RIGHT RTRIM SUBSTRING TRIM UPPER",
    511: "COALESCE CURRENT_DATABASE CURRENT_SCHEMA IFNULL NULLIF TYPEOF",
    512: "CURRENT_DATE DATE_DIFF DATE_PART DATE_TRUNC EXTRACT NOW STRFTIME STRPTIME",
}
_INFO: Final[dict[int, tuple[int, Any]]] = {
    **{number: (_STRING, text) for number, text in _TEXTS.items()},
    **{number: (_BOOL, number in _TRUE) for number in _TRUE | _FALSE},
    **{number: (_INT32, value) for number, value in _NUMBERS.items()},
    **{number: (_BIGINT, value) for number, value in _LIMITS.items()},
    **{number: (_STRINGS, words.split()) for number, words in _LISTS.items()},
    517: (_MAP, []),  # CONVERT: write CAST
}


def sql_info(numbers: Collection[int]) -> pa.RecordBatch:
    """The values of these numbers, or of all. Unknown numbers are left out."""
    wanted = [number for number in sorted(_INFO) if not numbers or number in numbers]
    kinds: Sequence[int] = [_INFO[number][0] for number in wanted]
    children = [[_INFO[n][1] for n in wanted if _INFO[n][0] == kind] for kind in range(_VALUE.num_fields)]
    offsets = [kinds[:index].count(kind) for index, kind in enumerate(kinds)]
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(child, _VALUE.field(kind).type) for kind, child in enumerate(children)],
        [_VALUE.field(kind).name for kind in range(_VALUE.num_fields)],
    )
    return pa.RecordBatch.from_arrays(
        [pa.array(wanted, pa.uint32()), values.cast(_VALUE) if values.type != _VALUE else values], schema=SQL_INFO
    )


def _type(name: str, number: int, size: int | None, *more: Any) -> tuple[Any, ...]:
    """A row of `TYPES`. LIKE can search for texts, and comparisons for all others, of which each may be NULL."""
    is_text, is_number = number == 12, number in (-6, -5, 3, 4, 5, 7, 8)
    quote = None if is_number or number == -7 else "'"
    scale, code = (*more, None, None)[:2]
    scales = (0, 38) if name == "DECIMAL" else (scale, scale)
    unsigned = name.startswith("U") if is_number else None
    facts = (name, number, size, quote, quote, _CREATED_WITH.get(name), 1, is_text, 3 if is_text else 2, unsigned)
    radix = None if not is_number else 2 if number in (7, 8) else 10
    return (*facts, False, False, name, *scales, 9 if code else number, code, radix, None)


_CREATED_WITH: Final = {"DECIMAL": ["precision", "scale"], "ENUM": ["values"]}

_WHOLE: Final = (
    *(("TINYINT", -6, 3), ("SMALLINT", 5, 5), ("INTEGER", 4, 10), ("BIGINT", -5, 19), ("HUGEINT", 3, 38)),
    *(("UTINYINT", -6, 3), ("USMALLINT", 5, 5), ("UINTEGER", 4, 10), ("UBIGINT", -5, 20), ("UHUGEINT", 3, 38)),
)

_TYPES: Final = sorted(
    [
        *(_type(*each, 0) for each in _WHOLE),
        *(_type(*each) for each in (("BOOLEAN", -7, 1), ("DECIMAL", 3, 38), ("FLOAT", 7, 24), ("DOUBLE", 8, 53))),
        *(
            _type(name, 12, None)
            for name in ("VARCHAR", "JSON", "UUID", "ENUM", "BIT", "BIGNUM", "TIME WITH TIME ZONE")
        ),
        *(_type(name, -3, None) for name in ("BLOB", "GEOMETRY")),
        _type("DATE", 91, 10, None, 1),
        *(_type(*each, 2) for each in (("TIME", 92, 15, 6), ("TIME_NS", 92, 18, 9))),
        *(
            _type(*each, 3)
            for each in (("TIMESTAMP", 93, 26, 6), ("TIMESTAMP_S", 93, 19, 0), ("TIMESTAMP_MS", 93, 23, 3))
        ),
        *(_type(*each) for each in (("TIMESTAMP_NS", 93, 29, 9, 3), ("TIMESTAMP WITH TIME ZONE", 93, 32, 6, 5))),
    ],
    key=lambda row: (int(row[1]), str(row[0])),
)
"""Types that Flight SQL has a number for, so neither INTERVAL nor nested ones."""


def type_info(number: int | None) -> pa.RecordBatch:
    """The types with this number, or all, ordered by their numbers."""
    rows = [row for row in _TYPES if number is None or row[1] == number]
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(TYPES)]
    return pa.RecordBatch.from_arrays(columns, schema=TYPES)
