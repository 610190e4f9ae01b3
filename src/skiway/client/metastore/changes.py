"""What changes share: fields that are given, kept or cleared, conditions, keys, and values in the form of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.errors import InvalidArgument
from skiway.model import v1

__all__ = ["KEEP", "Json", "Keep", "filled", "masked", "precondition", "schema_text", "time_of", "timestamp"]

M = TypeVar("M", bound=Message)
Json = str | Mapping[str, Any] | Sequence[Any]
"""Text that is JSON, or what JSON can be made of."""


class Keep(Enum):
    """The default of what an update may change: it stays as it is. None clears it."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP


def filled(kind: type[M], **fields: Any) -> M:
    """A message with these fields; None leaves one out."""
    try:
        return kind(**{name: value for name, value in fields.items() if value is not None})
    except (TypeError, ValueError) as error:
        given = ", ".join(name for name, value in fields.items() if value is not None)
        raise InvalidArgument(
            f"a {kind.__name__} cannot be made of what was given as {given}: {error}", key="field.invalid", field=given
        ) from error


def masked(kind: type[M], **fields: Any) -> tuple[M, FieldMask]:
    """A spec with the given fields, and the mask that names them: those that are kept are in neither."""
    given = {name: value for name, value in fields.items() if value is not KEEP}
    if not given:
        raise InvalidArgument(
            "the update names nothing to change: give what should be different, or None for what should be cleared",
            key="update.mask.required",
            field="update_mask",
        )
    return filled(kind, **given), FieldMask(paths=sorted(given))


def precondition(if_version: int | None, if_etag: str | None) -> v1.Precondition | None:
    """What must hold for a change to happen; None where nothing must."""
    if if_version is None and if_etag is None:
        return None
    return filled(v1.Precondition, expected_version=if_version, expected_etag=if_etag)


def schema_text(schema: Json | Keep | None) -> Any:
    """A schema as the JSON text that is stored."""
    if schema is None or isinstance(schema, Keep | str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the schema cannot be written as JSON ({error}): give JSON text, or dicts and lists",
            key="field.invalid",
            field="schema",
        ) from error


def timestamp(moment: datetime | Keep | None) -> Any:
    """A moment as messages hold it."""
    if moment is None or isinstance(moment, Keep):
        return moment
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{moment.isoformat()} may be any of many moments: give it with its zone, such as tzinfo=UTC",
            key="field.invalid",
            field="time",
        )
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def time_of(stamp: Timestamp) -> datetime:
    """The moment in a message, in UTC."""
    return stamp.ToDatetime(tzinfo=UTC)
