"""What a caller may demand of the stored version before a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from skiway.errors import Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore.records.errors import failure
from skiway.metastore.records.parents import ATTEMPTS
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored, etag, meta_of
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["check", "copied", "copy_field", "delete", "demands", "masked_paths", "update"]


def demands(precondition: v1.Precondition) -> bool:
    """Whether it says anything."""
    return precondition.HasField("expected_version") or precondition.HasField("expected_etag")


def check(precondition: v1.Precondition, pointer: Pointer, *, resource: str, name: str) -> None:
    """Raise unless all that is demanded holds for the resource at `pointer`."""
    if precondition.HasField("expected_version") and precondition.expected_version != pointer.version:
        expected, actual = str(precondition.expected_version), str(pointer.version)
        raise failure(
            PreconditionFailed, "version.mismatch", resource=resource, id=name, expected=expected, actual=actual
        )
    if precondition.HasField("expected_etag") and precondition.expected_etag != etag(pointer):
        expected, actual = precondition.expected_etag, etag(pointer)
        raise failure(PreconditionFailed, "etag.mismatch", resource=resource, id=name, expected=expected, actual=actual)


# --------------------
# FieldMasks: which fields an update touches, and what it does to each.
#
# A field in the mask is taken over from the spec. If the spec does not have it, an optional field is cleared, and a
# required one is an error. Maps and lists are replaced as a whole.


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


# --------------------
# How every kind of resource is updated and deleted.


M = TypeVar("M", bound=Message)

Remove = Callable[[Pointer, M | None], None]
Write = Callable[[Stored[M], M], Stored[M]]


def copied(value: M) -> M:
    """A copy of one's own."""
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def update(
    realm: Realm,
    repository: Repository[M],
    key: str,
    *,
    name: str,
    precondition: v1.Precondition,
    edit: Callable[[M], None],
    write: Write[M] | None = None,
) -> Stored[M]:
    """The resource after `edit`, which is given a copy. What `edit` leaves as it was is not written.

    `write` replaces the one by the other where that takes more than a plain update. A lost race is not tried again: the
    caller decided on what it had read.
    """
    current = repository.require(key, name=name)
    check(precondition, current.pointer, resource=repository.kind.noun, name=name)
    desired = copied(current.value)
    edit(desired)
    if desired == current.value:
        if demands(precondition):
            again = repository.require(key, name=name)
            check(precondition, again.pointer, resource=repository.kind.noun, name=name)
        return current
    cast(Any, desired).updated_at.CopyFrom(realm.now())
    return (write or repository.update)(current, desired)


def delete(
    repository: Repository[M], key: str, *, name: str, precondition: v1.Precondition, remove: Remove[M] | None = None
) -> v1.MutationMeta:
    """Delete a resource; where it was stored. Deleting what is not there is fine, unless something is demanded of it."""
    remove = remove or repository.delete
    demanded = demands(precondition)
    lost: Contention | None = None
    for _ in range(ATTEMPTS):
        found = repository.peek(key)
        if found is None:
            if demanded:
                raise repository.missing(name)
            return v1.MutationMeta(pointer_key=key)
        pointer, value = found
        check(precondition, pointer, resource=repository.kind.noun, name=name)
        try:
            remove(pointer, value)
        except (NotFound, Contention, PreconditionFailed) as error:
            if demanded or not _lost_race(error):
                raise
            lost = error if isinstance(error, Contention) else lost
        else:
            return meta_of(pointer, value)
    raise lost or failure(Contention, "store.contended", what=f"{repository.kind.noun} {name}")


def _lost_race(error: NotFound | Contention | PreconditionFailed) -> bool:
    return isinstance(error, Contention | NotFound) or error.key == "version.mismatch"
