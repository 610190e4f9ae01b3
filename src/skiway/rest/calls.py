"""A call on its way, and what the functions that answer it are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from skiway.errors import InvalidArgument
from skiway.formats.iceberg_warehouse import Warehouse
from skiway.formats.kept import Kept
from skiway.metastore import Realm
from skiway.rest.answers import Answer
from skiway.security import Principal
from skiway.telemetry.context import CallContext

if TYPE_CHECKING:
    from skiway.rest.mirrored import Mirrors

__all__ = ["CORRELATION_ID", "Act", "Asked", "Call", "Lake", "Route", "opened", "short_header"]

CORRELATION_ID: Final = "x-correlation-id"
MAX_HEADER: Final = 128
"""How long the value of one of our headers may be: they are echoed, logged and kept."""
RENDERED_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Lake:
    """Where tables are. `mirrors` opens those of connectors; without it only managed ones are served."""

    warehouse: Warehouse
    mirrors: Mirrors | None = None
    rendered: Kept[tuple[str, ...], str] = field(default_factory=lambda: Kept(RENDERED_BYTES, size_of=len))
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
    def endpoint(self) -> str:
        """As the configuration that clients ask for lists it."""
        return f"{self.method} {self.path}"


@dataclass(slots=True)
class Call:
    """One call. `principal` is known once it is admitted, `body` once it is read."""

    route: Route
    names: Mapping[str, str]
    query: Mapping[str, str]
    target: str
    headers: Mapping[str, str]
    context: CallContext
    body: bytes = b""
    principal: Principal | None = None
    outcome: str = "OK"
    """For the audit trail: the code of the error that the answer tells."""

    def asked(self, realm: Realm, lake: Lake) -> Asked:
        """The call as functions see it."""
        return Asked(realm, lake, self.names, self.query, self.headers, self.body)


def opened(headers: Mapping[str, str], operation: str, *, ids: Callable[[], str]) -> CallContext:
    """What the call is known by: the caller's correlation id, if it can be told again, or a new one."""
    given = headers.get(CORRELATION_ID, "").strip()
    fit = len(given) <= MAX_HEADER and given.isascii() and given.isprintable()
    return CallContext(correlation_id=given if given and fit else ids(), operation=f"IcebergRest/{operation}")


def short_header(headers: Mapping[str, str], name: str) -> str:
    """The header, or nothing; InvalidArgument if it is too long to be kept."""
    value = headers.get(name, "").strip()
    if len(value) > MAX_HEADER or not value.isascii() or not value.isprintable():
        raise InvalidArgument(
            f"header {name} must have up to {MAX_HEADER} printable ASCII characters: shorten it, or leave it out",
            key="header.invalid",
            header=name,
        )
    return value
