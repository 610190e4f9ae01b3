"""The profile of data files: one Arrow table with a row per file and column.

It is immutable, and belongs to the file, not to a snapshot: whoever has the same file has the same profile.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.pipeline.profile.values import ValueKind, kept_type, parsed, texts

__all__ = ["IDENTITY", "LONGEST_BOUND", "PROFILE", "failed_files", "figures_of", "refusals", "without_values"]

PROFILE: Final = pa.schema(
    {
        "path": pa.string(),
        "size_bytes": pa.int64(),
        "etag": pa.string(),
        "column_id": pa.int32(),  # NULL where `error` is about the whole file
        "row_count": pa.int64(),
        "null_count": pa.int64(),
        "nan_count": pa.int64(),
        "total_width": pa.int64(),  # of all values, in bytes, before any encoding
        "min": pa.string(),  # as the metastore writes bounds
        "max": pa.string(),
        "exact": pa.bool_(),  # whether both are values of the column, rather than just bounds
        "theta": pa.large_binary(),
        "domain": pa.string(),  # which bytes the theta sketch was fed with; see ValueKind
        "kll": pa.large_binary(),
        "top": pa.list_(pa.struct({"value": pa.string(), "count": pa.int64()})),  # most frequent ones first
        "error": pa.string(),  # why there are no figures
    }
)
IDENTITY: Final = ("path", "size_bytes", "etag")
"""A file is the same where these are."""

LONGEST_BOUND: Final = 256
"""Longer texts are cut to so many characters as bounds; bytes, to so many letters of Base64."""


def figures_of(files: pa.Table, answer: pa.Table, *, column_id: int, of: pa.DataType, kind: ValueKind) -> pa.Table:
    """The profile of one column in `files`, from what Spark answered: a row for each file, in the same order."""
    found = {name: answer[name].combine_chunks() for name in answer.column_names}
    rows, values = found["rows"], found["values"]
    width = pc.multiply(values, kind.width) if kind.width is not None else pc.fill_null(found["width"], 0)
    low, high = (_typed(found[name], of) for name in ("min", "max"))
    bounds, exact = _bounds(low, high, of)
    return _rows(
        files,
        column_id=pa.repeat(pa.scalar(column_id, pa.int32()), files.num_rows),
        row_count=rows,
        null_count=pc.subtract(rows, values),
        nan_count=pc.fill_null(found["nans"], 0) if kind.has_nan else pa.repeat(0, files.num_rows),
        total_width=width,
        **bounds,
        exact=exact,
        theta=found["theta"],
        domain=pa.repeat(kind.domain, files.num_rows),
        kll=found.get("kll"),
        top=_top(found["top"], of) if "top" in found else None,
    )


def without_values(files: pa.Table, rows: pa.Array, *, column_id: int, kind: ValueKind) -> pa.Table:
    """The profile of a column that is NULL on all rows of these files."""
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


def refusals(files: pa.Table, rows: pa.Array, *, column_id: int, reason: str) -> pa.Table:
    """The profile of a column that cannot be read in these files."""
    return _rows(
        files,
        column_id=pa.repeat(pa.scalar(column_id, pa.int32()), files.num_rows),
        row_count=rows,
        error=pa.repeat(reason, files.num_rows),
    )


def failed_files(files: pa.Table, reason: str) -> pa.Table:
    """What is left to say of files that cannot be read."""
    return _rows(files, error=pa.repeat(reason, files.num_rows))


def _rows(files: pa.Table, **figures: pa.Array | None) -> pa.Table:
    known = {name: files[name] for name in IDENTITY} | figures
    columns = [known.get(field.name) for field in PROFILE]
    arrays = [
        pa.nulls(files.num_rows, field.type) if column is None else column.cast(field.type)
        for field, column in zip(PROFILE, columns, strict=True)
    ]
    return pa.table(arrays, schema=PROFILE)


def _typed(answered: pa.Array, of: pa.DataType) -> pa.Array:
    """What Spark answered, in the type of the column."""
    plain = pa.decimal128(20, 0) if of == pa.uint64() else kept_type(of)
    if pa.types.is_time(plain) and plain.unit != "ns":
        return answered.cast(pa.time64("us")).cast(plain)
    return answered.cast(plain)


def _bounds(low: pa.Array, high: pa.Array, of: pa.DataType) -> tuple[dict[str, pa.Array], pa.Array]:
    shortened: dict[str, Any] = {}
    whole = pa.repeat(True, len(low))
    for name, values in (("min", low), ("max", high)):
        values = _writable(values)
        bounds, unchanged = _shortened(values, up=name == "max")
        said = texts(bounds, of, up=name == "max")
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
            unchanged = pc.fill_null(pc.equal(parsed(said, of), values), True)
        shortened[name] = said
        whole = pc.and_(whole, unchanged)
    return shortened, whole


def _writable(values: pa.Array) -> pa.Array:
    """Without moments that bounds cannot tell: those before the year 1 and after 9999."""
    if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        return values
    years = pc.year(values)
    inside = pc.and_(pc.greater_equal(years, 1), pc.less_equal(years, 9999))
    return pc.if_else(inside, values, pa.scalar(None, values.type))


def _shortened(values: pa.Array, *, up: bool) -> tuple[pa.Array, pa.Array]:
    """Bounds of a bearable length, and which of them were not touched. A cut upper bound is raised, or given up."""
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return values, pa.repeat(True, len(values))
    measure = pc.utf8_length if pa.types.is_string(values.type) else pc.binary_length
    long = pc.fill_null(pc.greater(measure(values), LONGEST_BOUND), False)
    if not pc.any(long, min_count=0).as_py():
        return values, pc.invert(long)
    cut = [
        _cut(value, up=up) if too_long else value
        for value, too_long in zip(values.to_pylist(), long.to_pylist(), strict=True)
    ]
    return pa.array(cut, values.type), pc.invert(long)


def _cut(value: Any, *, up: bool) -> Any:
    kept = value[:LONGEST_BOUND]
    if not up:
        return kept
    for end in range(len(kept), 0, -1):
        raised = _raised(kept[end - 1 : end])
        if raised is not None:
            return kept[: end - 1] + raised
    return None


def _raised(last: Any) -> Any:
    """The character or byte that follows; None after the last one."""
    if isinstance(last, bytes):
        return bytes([last[0] + 1]) if last[0] < 255 else None
    code = ord(last) + 1
    if 0xD800 <= code < 0xE000:
        code = 0xE000  # what lies between belongs to no text
    return chr(code) if code <= 0x10FFFF else None


def _top(answered: pa.Array, of: pa.DataType) -> pa.Array:
    """Without NULL, which Spark counts as a value, and NaN, which has no text."""
    pairs, owners = answered.flatten(), pc.list_parent_indices(answered)
    said = texts(_typed(pairs.field("item"), of), of)
    shown = said.is_valid()
    both = pa.StructArray.from_arrays([said, pairs.field("count").cast(pa.int64())], names=["value", "count"])
    lengths = np.bincount(owners.filter(shown).to_numpy(), minlength=len(answered))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, both.filter(shown))
