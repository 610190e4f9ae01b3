"""What goes back to a client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from skiway.cache import Cache
from skiway.errors import InvalidArgument
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm
from skiway.metastore.records import MAX_PAGE_SIZE
from skiway.model import v1
from skiway.requests import MAX_HEADER_LENGTH, Call, Operation, is_valid_header

if TYPE_CHECKING:
    from skiway.rest.mirrored import Mirrors

__all__ = [
    "COMPONENT",
    "NOTHING",
    "Act",
    "Answer",
    "Asked",
    "Lake",
    "RestCall",
    "Route",
    "listing",
    "said",
    "short_header",
]


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body in JSON or none, and headers beside those that every answer has."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


NOTHING: Final = Answer(204)
"""Done, and there is nothing to say."""


def said(value: Any, status: int = 200) -> Answer:
    """An answer that says `value`."""
    return Answer(status, json.dumps(value).encode())


# --------------------
# A call on its way, and what the functions that answer it are given.


COMPONENT: Final = "IcebergRest"
RENDERED_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Lake:
    """Where tables are. `mirrors` opens those of connectors; without it only managed ones are served."""

    warehouse: Warehouse
    mirrors: Mirrors | None = None
    rendered: Cache[tuple[str, ...], str] = field(default_factory=lambda: Cache(RENDERED_BYTES, weigh=len))
    """Metadata in JSON, by where it is: files of metadata never change."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a function is given: whose resources, what is asked for, and where tables are."""

    realm: Realm
    lake: Lake
    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


Act: TypeAlias = Callable[[Asked], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table of routes. A caller needs one of the permissions; calls are audited as `category`."""

    method: str
    path: str
    name: str
    act: Act
    permissions: tuple[str, ...]
    category: str
    changes: bool = False

    @property
    def operation(self) -> Operation:
        """The operation that the request pipeline knows the route by."""
        return Operation(COMPONENT, self.name, self.category, self.permissions)

    @property
    def endpoint(self) -> str:
        """As the configuration that clients ask for lists it."""
        return f"{self.method} {self.path}"


@dataclass(slots=True, kw_only=True)
class RestCall(Call):
    """A call of a route: `names` are those in the path, `target` is the path with the query as it was sent."""

    route: Route
    names: Mapping[str, str]
    query: Mapping[str, str]
    target: str
    body: bytes = b""

    def request(self, realm: Realm, lake: Lake) -> Asked:
        """The call as the functions of routes see it."""
        return Asked(realm, lake, self.names, self.query, self.headers, self.body)


def short_header(headers: Mapping[str, str], name: str) -> str:
    """The header's value, or ""; raises `InvalidArgument` if it is too long to be stored."""
    value = headers.get(name, "").strip()
    if not is_valid_header(value):
        raise InvalidArgument(
            f"header {name} must have up to {MAX_HEADER_LENGTH} printable ASCII characters: shorten it, or leave it out",
            key="header.invalid",
            header=name,
        )
    return value


# --------------------
# Listings in pages, as the specification has them: whoever does not ask for pages gets everything at once.


T = TypeVar("T")


def listing(
    query: Mapping[str, str],
    field: str,
    page: Callable[[v1.PageRequest], tuple[Sequence[T], v1.PageResponse]],
    shown: Callable[[T], Any],
) -> Answer:
    """The answer that lists what `page` finds as `field`, each item as `shown`; what is shown as None is left out."""
    paged = "pageToken" in query or "pageSize" in query
    request = v1.PageRequest(page_size=_size(query.get("pageSize")), page_token=query.get("pageToken", ""))
    found, response = page(request)
    items = list(found)
    while response.next_page_token and not paged:
        found, response = page(v1.PageRequest(page_size=MAX_PAGE_SIZE, page_token=response.next_page_token))
        items += found
    listed = [each for each in map(shown, items) if each is not None]
    # Always there: some clients take a list without a token for one that is not paged.
    return said({field: listed, "next-page-token": response.next_page_token or None})


def _size(text: str | None) -> int:
    if text is None:
        return MAX_PAGE_SIZE
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise InvalidArgument(
            f"pageSize is {text[:40]!r}: ask for a whole number from 1, of which up to {MAX_PAGE_SIZE} are shown",
            key="page.size.invalid",
            field="pageSize",
        )
    return int(text)
