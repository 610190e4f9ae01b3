"""What changes share: fields that are given, kept or cleared, conditions, keys, and values in the form of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.calls import Calls
from skiway.errors import Internal, InvalidArgument
from skiway.model import v1

__all__ = [
    "KEEP",
    "Area",
    "Json",
    "Keep",
    "Listing",
    "Turn",
    "filled",
    "masked",
    "precondition",
    "schema_text",
    "time_of",
    "timestamp",
]

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


# --------------------
# One kind of things in a metastore.


@dataclass(frozen=True, slots=True, repr=False)
class Area:
    """Where the verbs for one kind of things are: `lake.tables`."""

    _calls: Calls

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._calls.channel.location.text}"


# --------------------
# Listings that are read page by page, as far as somebody looks.


T = TypeVar("T", covariant=True)
Turn = Callable[[v1.PageRequest], tuple[Sequence[T], v1.PageResponse]]
"""Gives one page."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What a call lists. Nothing is asked for before it is iterated over, and each iteration asks anew.

    One page is held at a time. What comes and goes meanwhile is shown or not; all else is shown once.
    """

    _open: Callable[[], Turn[T]]
    page_size: int | None = None

    def __post_init__(self) -> None:
        if self.page_size is not None and self.page_size < 1:
            raise InvalidArgument(
                f"page_size is {self.page_size}: give a number from 1 on, or None for the server's choice",
                key="field.invalid",
                field="page_size",
            )

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[Sequence[T]]:
        """The same in pages, none of them empty."""
        turn, token = self._open(), ""
        while True:
            items, page = turn(v1.PageRequest(page_size=self.page_size or 0, page_token=token))
            if items:
                yield items
            if not page.next_page_token:
                return
            if page.next_page_token == token:
                raise Internal("the server answered a page with the token of the page itself", key="answer.malformed")
            token = page.next_page_token

    @property
    def total(self) -> int:
        """How many there are now, on all pages together: one call."""
        _, page = self._open()(v1.PageRequest(page_size=1))
        return page.total_size

    def __repr__(self) -> str:
        return f"Listing(page_size={self.page_size}): iterate over it"
