"""FieldMasks: which fields an update touches, and what it does to each.

A field in the mask is taken over from the spec. If the spec does not have it, an optional field is cleared, and a
required one is an error. Maps and lists are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from skiway.errors import InvalidArgument
from skiway.metastore.failures import failure

__all__ = ["copy_field", "masked_paths"]


def masked_paths(mask: FieldMask, *, allowed: Iterable[str], resource: str) -> set[str]:
    """The paths of a mask, lower-cased, if there are any and all are allowed."""
    paths = {path.strip().lower() for path in mask.paths}
    if not paths:
        raise failure(InvalidArgument, "update.mask.required", field="update_mask")
    choices = sorted(allowed)
    for path in sorted(paths):
        if path not in choices:
            raise failure(
                InvalidArgument,
                "update.mask.path.invalid",
                path=path,
                resource=resource,
                allowed=", ".join(choices),
                field="update_mask",
            )
    return paths


def copy_field(source: Message, target: Message, path: str, *, required: bool = False) -> None:
    """Make the field at `path` of `target` what it is in `source`; both have a field of this name."""
    *parents, name = path.split(".")
    for parent in parents:
        source, target = getattr(source, parent), getattr(target, parent)
    if _present(source, name):
        _replace(target, name, getattr(source, name))
    elif required:
        raise failure(InvalidArgument, f"{name.replace('_', '.')}.cannot.clear", field=path)
    else:
        target.ClearField(name)


def _present(message: Message, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return message.HasField(name) if field.has_presence else bool(getattr(message, name))


def _replace(target: Message, name: str, value: Any) -> None:
    """Assign to a field of any type: only plain ones can be set, the others are merged into an empty one."""
    target.ClearField(name)
    if isinstance(value, Message):
        getattr(target, name).CopyFrom(value)
    elif isinstance(value, str | bytes | int | float):
        setattr(target, name, value)
    else:
        getattr(target, name).MergeFrom(value)
