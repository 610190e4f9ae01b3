"""What the server tells clients about itself: GetSqlInfo. The numbers are those of Flight SQL's `SqlInfo`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa

from skiway import __version__

__all__ = ["SQL_INFO", "sql_info"]

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
_STRING, _BOOL, _INT32, _STRINGS = 0, 1, 3, 4

SQL_INFO: Final = pa.schema(
    [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _VALUE, nullable=False)]
)

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
}


def sql_info(numbers: Collection[int]) -> pa.RecordBatch:
    """The values of these numbers, or of all. Unknown numbers are left out."""
    wanted = [number for number in _INFO if not numbers or number in numbers]
    kinds: Sequence[int] = [_INFO[number][0] for number in wanted]
    children = [[_INFO[n][1] for n in wanted if _INFO[n][0] == kind] for kind in range(_VALUE.num_fields)]
    offsets = [kinds[:place].count(kind) for place, kind in enumerate(kinds)]
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(child, _VALUE.field(kind).type) for kind, child in enumerate(children)],
        [_VALUE.field(kind).name for kind in range(_VALUE.num_fields)],
    )
    return pa.RecordBatch.from_arrays(
        [pa.array(wanted, pa.uint32()), values.cast(_VALUE) if values.type != _VALUE else values], schema=SQL_INFO
    )
