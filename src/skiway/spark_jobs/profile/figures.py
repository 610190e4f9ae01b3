"""The profile of data files: an Arrow table with a row per file and column.

A profile is immutable and belongs to a file rather than to a snapshot: snapshots with the same file share its profile.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.spark_jobs.profile.values import ValueKind, is_exact_as_text, storage_type_of, texts

PROFILE: Final = pa.schema(
    {
        "path": pa.string(),
        "size_bytes": pa.int64(),
        "etag": pa.string(),
        "column_id": pa.int32(),  # NULL if `error` is about the whole file
        "row_count": pa.int64(),
        "null_count": pa.int64(),
        "nan_count": pa.int64(),
        "total_width": pa.int64(),  # of all values, in bytes, unencoded
        "min": pa.string(),  # in the canonical text form of the metastore
        "max": pa.string(),
        "exact": pa.bool_(),  # whether both occur in the column, rather than being just bounds
        "theta": pa.large_binary(),
        "domain": pa.string(),  # which bytes the theta sketch has hashed; see ValueKind
        "kll": pa.large_binary(),
        "top": pa.list_(pa.struct({"value": pa.string(), "count": pa.int64()})),  # most frequent first
        "error": pa.string(),  # the reason if there are no figures
        "element_count": pa.int64(),  # of a column in lists or maps, the number of values; else NULL
    }
)
ADDED_LATER: Final = "the file was written before the column was added, which has a default"
"""The `error` of a column that a file does not have; its default is its value in all rows."""

IDENTITY: Final = ("path", "size_bytes", "etag")
"""The columns that identify a file."""

MAX_BOUND_LENGTH: Final = 256
"""Bounds of strings and bytes are truncated to this length."""


def figures_of(files: pa.Table, result: pa.Table, *, column_id: int, of: pa.DataType, kind: ValueKind) -> pa.Table:
    """The profile of a column in `files`, from the result of a scan, which has a row per file in the same order.

    Of a column in lists or maps, the scan also has the `count` of its values.
    """
    figures = {name: result[name].combine_chunks() for name in result.column_names}
    rows, values, elements = figures["rows"], figures["values"], figures.get("count")
    low, high = (typed(figures[name], of) for name in ("min", "max"))
    bounds, exact = _bounds(low, high, of)
    return _rows(
        files,
        column_id=pa.repeat(pa.scalar(column_id, pa.int32()), files.num_rows),
        row_count=rows,
        element_count=elements,
        null_count=pc.subtract(rows if elements is None else elements, values),
        nan_count=figures["nans"] if kind.has_nan else pa.repeat(0, files.num_rows),
        total_width=pc.multiply(values, kind.width) if kind.width is not None else figures["width"],
        **bounds,
        exact=exact,
        theta=figures["theta"],
        domain=pa.repeat(kind.domain, files.num_rows),
        kll=figures.get("kll"),
        top=_top(figures["top"], of) if "top" in figures else None,
    )


def all_null_columns(files: pa.Table, rows: pa.Array, *, column_id: int, kind: ValueKind) -> pa.Table:
    """The profile of a column that is NULL in all rows of these files."""
    none = pa.repeat(pa.scalar(0, pa.int64()), files.num_rows)
    return _rows(
        files,
        column_id=pa.repeat(pa.scalar(column_id, pa.int32()), files.num_rows),
        row_count=rows,
        null_count=rows,
        nan_count=none,
        total_width=none,
        exact=pa.repeat(True, files.num_rows),
        domain=pa.repeat(kind.domain, files.num_rows),
    )


def empty_elements(files: pa.Table, *, column_id: int, kind: ValueKind) -> pa.Table:
    """The profile of a column in lists or maps that these files do not have."""
    none = pa.repeat(pa.scalar(0, pa.int64()), files.num_rows)
    found = all_null_columns(files, none, column_id=column_id, kind=kind)
    for name, values in (("row_count", files["row_count"].cast(pa.int64())), ("element_count", none)):
        found = found.set_column(found.column_names.index(name), PROFILE.field(name), values)
    return found


def unreadable_columns(files: pa.Table, rows: pa.Array, *, column_id: int, reason: str) -> pa.Table:
    """The profile of a column that cannot be read in these files."""
    return _rows(
        files,
        column_id=pa.repeat(pa.scalar(column_id, pa.int32()), files.num_rows),
        row_count=rows,
        error=pa.repeat(reason, files.num_rows),
    )


def failed_files(files: pa.Table, reason: str) -> pa.Table:
    """The profile of files that cannot be read."""
    return _rows(files, error=pa.repeat(reason, files.num_rows))


def _rows(files: pa.Table, **figures: pa.Array | None) -> pa.Table:
    known = {name: files[name] for name in IDENTITY} | figures
    columns = [known.get(field.name) for field in PROFILE]
    arrays = [
        pa.nulls(files.num_rows, field.type) if column is None else column.cast(field.type)
        for field, column in zip(PROFILE, columns, strict=True)
    ]
    return pa.table(arrays, schema=PROFILE)


def typed(result: pa.Array, of: pa.DataType) -> pa.Array:
    """Cast a figure of a scan to the type of the column."""
    plain = pa.decimal128(20, 0) if of == pa.uint64() else storage_type_of(of)
    if pa.types.is_time(plain) and plain.unit != "ns":
        return result.cast(pa.time64("us")).cast(plain)
    return result.cast(plain)


def _bounds(low: pa.Array, high: pa.Array, of: pa.DataType) -> tuple[dict[str, pa.Array], pa.Array]:
    bounds_as_text: dict[str, Any] = {}
    whole = pa.repeat(True, len(low))
    for name, values in (("min", low), ("max", high)):
        values = _representable(values)
        bounds, unchanged = _truncated(values, up=name == "max")
        text = texts(bounds, of, up=name == "max")
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
            unchanged = pc.fill_null(is_exact_as_text(values, text, of), True)
        bounds_as_text[name] = text
        whole = pc.and_(whole, unchanged)
    return bounds_as_text, whole


def _representable(values: pa.Array) -> pa.Array:
    """Replace dates and timestamps outside of the years 1 to 9999, which bounds cannot represent, by NULL."""
    if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        return values
    years = pc.year(values)
    inside = pc.and_(pc.greater_equal(years, 1), pc.less_equal(years, 9999))
    return pc.if_else(inside, values, pa.scalar(None, values.type))


def _truncated(values: pa.Array, *, up: bool) -> tuple[pa.Array, pa.Array]:
    """Truncate long bounds, and return which were unchanged. A truncated upper bound is incremented, or NULL."""
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return values, pa.repeat(True, len(values))
    measure = pc.utf8_length if pa.types.is_string(values.type) else pc.binary_length
    long = pc.fill_null(pc.greater(measure(values), MAX_BOUND_LENGTH), False)
    if not pc.any(long, min_count=0).as_py():
        return values, pc.invert(long)
    cut = [
        _truncate(value, up=up) if too_long else value
        for value, too_long in zip(values.to_pylist(), long.to_pylist(), strict=True)
    ]
    return pa.array(cut, values.type), pc.invert(long)


def _truncate(value: Any, *, up: bool) -> Any:
    prefix = value[:MAX_BOUND_LENGTH]
    if not up:
        return prefix
    for end in range(len(prefix), 0, -1):
        successor = _successor(prefix[end - 1 : end])
        if successor is not None:
            return prefix[: end - 1] + successor
    return None


def _successor(last: Any) -> Any:
    """The next character or byte; None after the last one."""
    if isinstance(last, bytes):
        return bytes([last[0] + 1]) if last[0] < 255 else None
    code = ord(last) + 1
    if 0xD800 <= code < 0xE000:
        code = 0xE000  # surrogates are not characters
    return chr(code) if code <= 0x10FFFF else None


def _top(result: pa.Array, of: pa.DataType) -> pa.Array:
    """The frequent values as text, without NaN, which has none."""
    pairs, owners = result.flatten(), pc.list_parent_indices(result)
    text = texts(typed(pairs.field("item"), of), of)
    valid = text.is_valid()
    both = pa.StructArray.from_arrays([text, pairs.field("count").cast(pa.int64())], names=["value", "count"])
    lengths = np.bincount(owners.filter(valid).to_numpy(), minlength=len(result))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, both.filter(valid))
