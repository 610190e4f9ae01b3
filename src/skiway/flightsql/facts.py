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


def layout(**fields: pa.DataType) -> pa.Schema:
    """A schema of columns; those with names that end in `_` are nullable."""
    return pa.schema([pa.field(name.rstrip("_"), kind, nullable=name.endswith("_")) for name, kind in fields.items()])


SQL_INFO: Final = layout(info_name=pa.uint32(), value=_VALUE)

TYPES: Final = layout(
    type_name=pa.string(),
    data_type=pa.int32(),
    column_size_=pa.int32(),
    literal_prefix_=pa.string(),
    literal_suffix_=pa.string(),
    create_params_=pa.list_(pa.field("item", pa.string(), nullable=False)),
    nullable=pa.int32(),
    case_sensitive=pa.bool_(),
    searchable=pa.int32(),
    unsigned_attribute_=pa.bool_(),
    fixed_prec_scale=pa.bool_(),
    auto_increment_=pa.bool_(),
    local_type_name_=pa.string(),
    minimum_scale_=pa.int32(),
    maximum_scale_=pa.int32(),
    sql_data_type=pa.int32(),
    datetime_subcode_=pa.int32(),
    num_prec_radix_=pa.int32(),
    interval_precision_=pa.int32(),
)

_MAX_STATEMENT: Final = 1 << 20
"""The characters of a query that the sandbox accepts."""

_INFO: Final[dict[int, tuple[int, Any]]] = {
    0: (_STRING, "Skiway"),
    1: (_STRING, __version__),
    2: (_STRING, pa.__version__),
    3: (_BOOL, True),  # read-only
    4: (_BOOL, True),  # SQL
    5: (_BOOL, False),  # Substrait
    8: (_INT32, 0),  # no transactions
    9: (_BOOL, False),  # CancelQuery: clients cancel the call instead
    500: (_BOOL, False),  # CREATE and DROP of catalogs
    501: (_BOOL, False),  # of schemas
    502: (_BOOL, False),  # of tables
    503: (_INT32, 1),  # identifiers are case-insensitive
    504: (_STRING, '"'),
    505: (_INT32, 1),  # quoted ones, too
    506: (_BOOL, True),  # all listed tables can be selected from
    507: (_INT32, 3),  # NULL comes last
    508: (_STRINGS, ["ASOF", "PIVOT", "QUALIFY", "SAMPLE", "UNPIVOT"]),
    509: (
        _STRINGS,
        ["ABS", "CEIL", "EXP", "FLOOR", "GREATEST", "LEAST", "LN", "LOG10", "MOD", "POWER", "ROUND", "SIGN", "SQRT"],
    ),
    510: (
        _STRINGS,
        ["CONCAT", "LEFT", "LENGTH", "LOWER", "LTRIM", "REPLACE", "RIGHT", "RTRIM", "SUBSTRING", "TRIM", "UPPER"],
    ),
    511: (_STRINGS, ["COALESCE", "CURRENT_DATABASE", "CURRENT_SCHEMA", "IFNULL", "NULLIF", "TYPEOF"]),
    512: (_STRINGS, ["CURRENT_DATE", "DATE_DIFF", "DATE_PART", "DATE_TRUNC", "EXTRACT", "NOW", "STRFTIME", "STRPTIME"]),
    513: (_STRING, ""),  # patterns of listings have no escape character
    514: (_STRING, ""),
    515: (_BOOL, True),  # aliases of columns
    516: (_BOOL, True),  # NULL plus anything is NULL
    517: (_MAP, []),  # CONVERT: write CAST
    518: (_BOOL, True),  # aliases of tables
    519: (_BOOL, False),  # which need not differ from their names
    520: (_BOOL, True),  # expressions in ORDER BY
    521: (_BOOL, True),  # ORDER BY columns that are not selected
    522: (_INT32, 0b11),  # GROUP BY
    523: (_BOOL, True),  # LIKE with ESCAPE
    524: (_BOOL, True),  # NOT NULL
    525: (_INT32, 0b111),  # grammar: minimum, core and extended
    526: (_INT32, 0b1),  # SQL-92: entry level
    527: (_BOOL, False),  # keys
    528: (_INT32, 0b110),  # outer joins: limited and full
    529: (_STRING, "schema"),
    530: (_STRING, "function"),
    531: (_STRING, "catalog"),
    532: (_BOOL, True),  # a name begins with its catalog
    533: (_INT32, 0),  # schemas in statements that are refused here
    534: (_INT32, 0),  # catalogs in them
    535: (_INT32, 0),  # positioned UPDATE and DELETE
    536: (_BOOL, False),  # SELECT FOR UPDATE
    537: (_BOOL, False),  # stored procedures
    538: (_INT32, 0b1111),  # subqueries: in comparisons, EXISTS, IN and with quantifiers
    539: (_BOOL, True),  # correlated ones
    540: (_INT32, 0b11),  # UNION and UNION ALL
    **dict.fromkeys(range(541, 556), (_BIGINT, 0)),  # maximum lengths and numbers, without known limits
    556: (_BOOL, True),  # the size of rows includes BLOBs
    557: (_BIGINT, _MAX_STATEMENT),
    **dict.fromkeys(range(558, 562), (_BIGINT, 0)),
    562: (_BIGINT, 0),  # isolation: none
    563: (_BOOL, False),  # transactions
    564: (_INT32, 0b1),  # levels of isolation: none
    565: (_BOOL, False),  # DDL commits
    566: (_BOOL, False),  # DDL is ignored in transactions
    567: (_INT32, 0b10),  # results are read forward
    568: (_INT32, 0b10),  # and cannot be updated
    569: (_INT32, 0b10),
    570: (_INT32, 0),
    571: (_INT32, 0),
    572: (_BOOL, False),  # batches of updates
    573: (_BOOL, False),  # savepoints
    574: (_BOOL, True),  # named parameters
    575: (_BOOL, False),  # LOBs as locators
    576: (_BOOL, False),  # CALL
}


def sql_info(numbers: Collection[int]) -> pa.RecordBatch:
    """The values of these numbers, or of all. Unknown numbers are left out."""
    wanted = [number for number in _INFO if not numbers or number in numbers]
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


def _type(
    name: str,
    number: int,
    size: int | None = None,
    *,
    quotes: bool = False,
    create: Sequence[str] | None = None,
    text: bool = False,
    unsigned: bool | None = None,
    scales: tuple[int | None, int | None] = (None, None),
    general: int | None = None,
    code: int | None = None,
    radix: int | None = None,
) -> tuple[Any, ...]:
    """A row of `TYPES`. Values of each type may be NULL; LIKE can search for texts, and comparisons for all others."""
    quote = "'" if quotes else None
    searchable = 3 if text else 2
    facts = (name, number, size, quote, quote, create, 1, text, searchable, unsigned, False, False, name)
    return (*facts, *scales, number if general is None else general, code, radix, None)


def _number(name: str, number: int, digits: int, *, unsigned: bool = False, radix: int = 10) -> tuple[Any, ...]:
    """A row of a number without fractions, or with `radix` 2 of one without a fixed number of them."""
    return _type(name, number, digits, unsigned=unsigned, scales=(0, 0) if radix == 10 else (None, None), radix=radix)


def _moment(name: str, number: int, size: int, scale: int | None, code: int) -> tuple[Any, ...]:
    """A row of a date or time, with the digits of a second."""
    return _type(name, number, size, quotes=True, scales=(scale, scale), general=9, code=code)


_TYPES: Final = sorted(
    [
        _type("BOOLEAN", -7, 1),
        _number("TINYINT", -6, 3),
        _number("UTINYINT", -6, 3, unsigned=True),
        _number("SMALLINT", 5, 5),
        _number("USMALLINT", 5, 5, unsigned=True),
        _number("INTEGER", 4, 10),
        _number("UINTEGER", 4, 10, unsigned=True),
        _number("BIGINT", -5, 19),
        _number("UBIGINT", -5, 20, unsigned=True),
        _number("HUGEINT", 3, 38),
        _number("UHUGEINT", 3, 38, unsigned=True),
        _type("DECIMAL", 3, 38, create=["precision", "scale"], unsigned=False, scales=(0, 38), radix=10),
        _number("FLOAT", 7, 24, radix=2),
        _number("DOUBLE", 8, 53, radix=2),
        *(_type(name, 12, quotes=True, text=True) for name in ("VARCHAR", "JSON", "UUID", "ENUM", "BIT", "BIGNUM")),
        _type("TIME WITH TIME ZONE", 12, 21, quotes=True, text=True),
        _type("BLOB", -3, quotes=True),
        _type("GEOMETRY", -3, quotes=True),
        _moment("DATE", 91, 10, None, 1),
        _moment("TIME", 92, 15, 6, 2),
        _moment("TIME_NS", 92, 18, 9, 2),
        _moment("TIMESTAMP", 93, 26, 6, 3),
        _moment("TIMESTAMP_S", 93, 19, 0, 3),
        _moment("TIMESTAMP_MS", 93, 23, 3, 3),
        _moment("TIMESTAMP_NS", 93, 29, 9, 3),
        _moment("TIMESTAMP WITH TIME ZONE", 93, 32, 6, 5),
    ],
    key=lambda row: (int(row[1]), str(row[0])),
)
"""Types that Flight SQL has a number for, so neither INTERVAL nor nested ones."""


def type_info(number: int | None) -> pa.RecordBatch:
    """The types with this number, or all, ordered by their numbers."""
    rows = [row for row in _TYPES if number is None or row[1] == number]
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(TYPES)]
    return pa.RecordBatch.from_arrays(columns, schema=TYPES)
