"""Adds, renames and removes fields of nested structs, in the type and in the values.

A path consists of field names. The step into a list is `element`, the steps into a map are `key` and `value`, as in DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import drop_nulls, list_offsets, scatter_valid
from skiway.airport.memory.definitions import fold_case, valid_name
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PreconditionFailed

__all__ = ["Edit", "add", "edit_struct", "has_field", "remove", "rename"]

Edit = Callable[[pa.StructArray], pa.StructArray]


def edit_struct(array: pa.Array, path: Sequence[str], edit: Edit) -> pa.Array:
    """Apply `edit` to the struct at `path`. NULLs stay NULL."""
    if not path and not pa.types.is_struct(array.type):
        raise InvalidArgument(f"only structs have fields, not {array.type}")
    if array.null_count:
        return scatter_valid(edit_struct(drop_nulls(array), path, edit), array.is_valid())
    if not path:
        return edit(array)
    if pa.types.is_struct(array.type):
        return _in_struct(array, path, edit)
    if pa.types.is_map(array.type):
        return _in_map(array, path, edit)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _in_list(array, path, edit)
    raise InvalidArgument(f"{array.type} has no {path[0]!r}")


def add(field: pa.Field, fill: Callable[[int], pa.Array]) -> Edit:
    """An edit that appends a field. `fill(n)` returns n values for it."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        valid_name(field.name, "struct field")
        if _position(array.type, field.name) is not None:
            raise AlreadyExists(f"the struct already has a field {field.name!r}")
        children = [*array.flatten(), fill(len(array))]
        return pa.StructArray.from_arrays(children, fields=[*array.type, field.with_nullable(True)])

    return edit


def rename(name: str, new_name: str) -> Edit:
    """An edit that renames a field."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        index = _index(array.type, name)
        existing = _position(array.type, valid_name(new_name, "struct field"))
        if existing not in (None, index):
            raise AlreadyExists(f"the struct already has a field {new_name!r}")
        fields = [field.with_name(new_name) if i == index else field for i, field in enumerate(array.type)]
        return pa.StructArray.from_arrays(array.flatten(), fields=fields)

    return edit


def remove(name: str) -> Edit:
    """An edit that removes a field."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        index = _index(array.type, name)
        kept = [i for i in range(array.type.num_fields) if i != index]
        if not kept:
            raise PreconditionFailed(f"{name!r} is the only field of its struct: drop the column instead")
        children = array.flatten()
        return pa.StructArray.from_arrays([children[i] for i in kept], fields=[array.type.field(i) for i in kept])

    return edit


def has_field(data_type: pa.DataType, path: Sequence[str]) -> bool:
    """Whether `path` leads to a field of a struct."""
    found = False

    def look(array: pa.StructArray) -> pa.StructArray:
        nonlocal found
        found = _position(array.type, path[-1]) is not None
        return array

    edit_struct(pa.nulls(0, data_type), path[:-1], look)
    return found


def _position(struct: pa.StructType, name: str) -> int | None:
    return next((i for i, field in enumerate(struct) if fold_case(field.name) == fold_case(name)), None)


def _index(struct: pa.StructType, name: str) -> int:
    index = _position(struct, name)
    if index is None:
        raise NotFound(f"the struct has no field {name!r}; it has {', '.join(repr(field.name) for field in struct)}")
    return index


def _in_struct(array: pa.StructArray, path: Sequence[str], edit: Edit) -> pa.StructArray:
    index = _index(array.type, path[0])
    children, fields = array.flatten(), list(array.type)
    children[index] = edit_struct(children[index], path[1:], edit)
    fields[index] = fields[index].with_type(children[index].type)
    return pa.StructArray.from_arrays(children, fields=fields)


def _in_list(array: pa.Array, path: Sequence[str], edit: Edit) -> pa.Array:
    _expect(array.type, path[0], "element")
    values = edit_struct(array.flatten(), path[1:], edit)
    field = array.type.value_field.with_type(values.type)
    if pa.types.is_large_list(array.type):
        return pa.LargeListArray.from_arrays(
            list_offsets(pc.list_value_length(array)), values, type=pa.large_list(field)
        )
    return pa.ListArray.from_arrays(list_offsets(pc.list_value_length(array)), values, type=pa.list_(field))


def _in_map(array: pa.MapArray, path: Sequence[str], edit: Edit) -> pa.MapArray:
    _expect(array.type, path[0], "key", "value")
    offsets = array.offsets
    first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    if fold_case(path[0]) == "key":
        keys = edit_struct(keys, path[1:], edit)
    else:
        items = edit_struct(items, path[1:], edit)
    map_type = pa.map_(array.type.key_field.with_type(keys.type), array.type.item_field.with_type(items.type))
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), keys, items, type=map_type)


def _expect(data_type: pa.DataType, step: str, *steps: str) -> None:
    if fold_case(step) not in steps:
        raise NotFound(f"{data_type} has {' or '.join(map(repr, steps))}, not {step!r}")
