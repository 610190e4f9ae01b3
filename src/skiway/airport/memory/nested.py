"""Members of structs, however deep: added, renamed, removed, in the type and in the values at once.

A path names a member of a struct; inside a list the step is `element`, inside a map `key` or `value`, as in DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import offsets_of, present, spread
from skiway.airport.memory.definitions import folded, valid_name
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PreconditionFailed

__all__ = ["Edit", "added", "edited", "has_member", "removed", "renamed"]

Edit = Callable[[pa.StructArray], pa.StructArray]


def edited(array: pa.Array, path: Sequence[str], edit: Edit) -> pa.Array:
    """`array` with `edit` made to the struct at `path`; NULLs stay NULL."""
    if not path and not pa.types.is_struct(array.type):
        raise InvalidArgument(f"only structs have members, and this is {array.type}")
    if array.null_count:
        return spread(edited(present(array), path, edit), array.is_valid())
    if not path:
        return edit(array)
    if pa.types.is_struct(array.type):
        return _in_struct(array, path, edit)
    if pa.types.is_map(array.type):
        return _in_map(array, path, edit)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _in_list(array, path, edit)
    raise InvalidArgument(f"there is no way to {path[0]!r} inside {array.type}")


def added(field: pa.Field, fill: Callable[[int], pa.Array]) -> Edit:
    """Adds a last member; `fill` gives that many values for it."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        valid_name(field.name, "struct member")
        if _position(array.type, field.name) is not None:
            raise AlreadyExists(f"the struct already has a member {field.name!r}")
        children = [*array.flatten(), fill(len(array))]
        return pa.StructArray.from_arrays(children, fields=[*array.type, field.with_nullable(True)])

    return edit


def renamed(name: str, new_name: str) -> Edit:
    """Gives a member another name."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        index = _index(array.type, name)
        taken = _position(array.type, valid_name(new_name, "struct member"))
        if taken not in (None, index):
            raise AlreadyExists(f"the struct already has a member {new_name!r}")
        fields = [field.with_name(new_name) if i == index else field for i, field in enumerate(array.type)]
        return pa.StructArray.from_arrays(array.flatten(), fields=fields)

    return edit


def removed(name: str) -> Edit:
    """Removes a member."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        index = _index(array.type, name)
        kept = [i for i in range(array.type.num_fields) if i != index]
        if not kept:
            raise PreconditionFailed(f"{name!r} is the last member of its struct: remove the column instead")
        children = array.flatten()
        return pa.StructArray.from_arrays([children[i] for i in kept], fields=[array.type.field(i) for i in kept])

    return edit


def has_member(data_type: pa.DataType, path: Sequence[str]) -> bool:
    """Whether the struct at all but the last step of `path` has the last as its member."""
    found = False

    def look(array: pa.StructArray) -> pa.StructArray:
        nonlocal found
        found = _position(array.type, path[-1]) is not None
        return array

    edited(pa.nulls(0, data_type), path[:-1], look)
    return found


def _position(struct: pa.StructType, name: str) -> int | None:
    return next((i for i, field in enumerate(struct) if folded(field.name) == folded(name)), None)


def _index(struct: pa.StructType, name: str) -> int:
    index = _position(struct, name)
    if index is None:
        raise NotFound(f"the struct has no member {name!r}; it has {', '.join(repr(field.name) for field in struct)}")
    return index


def _in_struct(array: pa.StructArray, path: Sequence[str], edit: Edit) -> pa.StructArray:
    index = _index(array.type, path[0])
    children, fields = array.flatten(), list(array.type)
    children[index] = edited(children[index], path[1:], edit)
    fields[index] = fields[index].with_type(children[index].type)
    return pa.StructArray.from_arrays(children, fields=fields)


def _in_list(array: pa.Array, path: Sequence[str], edit: Edit) -> pa.Array:
    _expect(array.type, path[0], "element")
    values = edited(array.flatten(), path[1:], edit)
    field = array.type.value_field.with_type(values.type)
    if pa.types.is_large_list(array.type):
        return pa.LargeListArray.from_arrays(offsets_of(pc.list_value_length(array)), values, type=pa.large_list(field))
    return pa.ListArray.from_arrays(offsets_of(pc.list_value_length(array)), values, type=pa.list_(field))


def _in_map(array: pa.MapArray, path: Sequence[str], edit: Edit) -> pa.MapArray:
    _expect(array.type, path[0], "key", "value")
    offsets = array.offsets
    first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    if folded(path[0]) == "key":
        keys = edited(keys, path[1:], edit)
    else:
        items = edited(items, path[1:], edit)
    made = pa.map_(array.type.key_field.with_type(keys.type), array.type.item_field.with_type(items.type))
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), keys, items, type=made)


def _expect(data_type: pa.DataType, step: str, *steps: str) -> None:
    if folded(step) not in steps:
        raise InvalidArgument(f"inside {data_type} the next step is {' or '.join(map(repr, steps))}, not {step!r}")
