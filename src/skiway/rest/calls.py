"""Calls of the REST catalog: routes, requests, responses, pagination and idempotency keys.

A request with the header `idempotency-key` is executed once. Its response is stored under the key, client errors included,
and returned when the same request is sent again. While the first request is running, a second one fails with 503. Server
errors are not stored, so the request can be repeated; if the process died, it can be repeated after a minute.
"""

from __future__ import annotations

import json
import logging
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol, TypeAlias

from skiway.errors import Conflict, InvalidArgument, SkiwayError, Unavailable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.opening import OpenedTable
from skiway.foundation.cache import Cache
from skiway.foundation.doors import MAX_HEADER_LENGTH, is_valid_header
from skiway.metastore import Realm, branches, managed
from skiway.metastore.records import MAX_PAGE_SIZE
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.updates import Slot
from skiway.model import v1
from skiway.request_path import Call, Operation
from skiway.security import NOBODY, Principal
from skiway.telemetry.context import require_active
from skiway.vending import Vending


@dataclass(frozen=True, slots=True)
class RestResponse:
    """A status, a JSON body or none, and headers in addition to those of every response.

    `stored` replaces the body where the response is stored for repeated requests: credentials are not stored.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    stored: bytes | None = None


NO_CONTENT: Final = RestResponse(204)
"""The response of a change that returns nothing."""


def json_response(value: Any, status: int = 200) -> RestResponse:
    """A response with `value` as JSON."""
    return RestResponse(status, json.dumps(value).encode())


COMPONENT: Final = "IcebergRest"
RENDERED_BYTES: Final = 64 * 1024 * 1024


class Mirrors(Protocol):
    """Opens tables of connectors."""

    def __call__(self, realm: Realm, table: v1.Table, /) -> OpenedTable:
        """Open the table as it is upstream."""


class TokenIssuer(Protocol):
    """Issues access tokens."""

    def issue(self, token: str, /) -> tuple[str, float]:
        """An access token for the owner of a token, and for how many seconds it is valid. Raises `Unauthorized`."""

    def renews(self, expired: str, token: str, /) -> bool:
        """Whether `expired` is an access token of the static token `token`. Raises `Unauthorized` if it is none at all."""


@dataclass(frozen=True, slots=True)
class Lake:
    """Access to tables. `mirrors` opens tables of connectors; without it only managed tables are served.

    `vending` gives clients access to the files of tables. `tokens` issues access tokens; without it there are none. `turns`
    are those of clients that commit to the same table.
    """

    warehouse: Warehouse
    mirrors: Mirrors | None = None
    vending: Vending = field(default_factory=Vending)
    tokens: TokenIssuer | None = None
    turns: managed.ClientTurns = field(default_factory=managed.ClientTurns)
    rendered: Cache[tuple[str, ...], str] = field(default_factory=lambda: Cache(RENDERED_BYTES, weigh=len))
    """Rendered metadata by location: metadata files never change."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """What a handler gets: whose resources, what is request for, and where tables are.

    `decision` is what the caller may do; what a handler adds to `details` is in the audit record. `authenticate` finds out
    whose a token is and makes them the caller, for the route without authentication.
    """

    realm: Realm
    lake: Lake
    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    decision: AccessDecision | None = None
    details: dict[str, str | int] = field(default_factory=dict)
    authenticate: Callable[[str], Principal] = field(default=lambda _: NOBODY)

    @property
    def branch_id(self) -> str:
        """The id of the branch of the lake that the request is about; empty on main."""
        branch = branch_of(self.realm.stores)
        return "" if branch is None else branch.id


Handler: TypeAlias = Callable[[RestRequest], RestResponse]


@dataclass(frozen=True, slots=True)
class Route:
    """One route. A caller needs one of the permissions; calls are audited as `category`."""

    method: str
    path: str
    name: str
    handler: Handler
    permissions: tuple[str, ...]
    category: str
    changes: bool = False
    offered: Callable[[Lake], bool] = lambda _: True
    """Whether `/v1/config` lists the route."""
    takes_form: bool = False
    """Whether it is a route of OAuth, with a form as the body."""

    @property
    def operation(self) -> Operation:
        """The operation that the request pipeline knows the route by."""
        return Operation(COMPONENT, self.name, self.category, self.permissions)

    @property
    def endpoint(self) -> str:
        """The route as `/v1/config` lists it."""
        return f"{self.method} {self.path}"


@dataclass(slots=True, kw_only=True)
class RestCall(Call):
    """A call of a route: `names` are those in the path, `target` is the path with the query as it was sent.

    `received` is the size of the body as far as it was received, also if it was rejected and `body` is empty.
    """

    route: Route
    names: Mapping[str, str]
    query: Mapping[str, str]
    target: str
    body: bytes = b""
    received: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the client no longer waits for the response. Long handlers then stop."""

    def request(self, realm: Realm, lake: Lake, authenticate: Callable[[str], Principal]) -> RestRequest:
        """The call as its handler sees it: on main or, if the path names a branch of the lake, on the branch."""
        decision = self.decision
        named = self.names.get("prefix", "") or self.query.get("warehouse", "")
        on_branch = branches.on_branch(realm, lake.warehouse, named) if BRANCH_MARK in named else None
        if on_branch is not None:
            realm = on_branch[0]
            decision = branches.decision_on_branch(realm, decision)
        return RestRequest(
            realm,
            lake,
            self.names,
            self.query,
            self.headers,
            self.body,
            decision=decision,
            details=self.details,
            authenticate=authenticate,
        )


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


# -- pagination -------------------------------------------------------------------------------------------------------


def listing(
    query: Mapping[str, str],
    field: str,
    page: Callable[[v1.PageRequest], v1.ListTablesResponse | v1.ListViewsResponse | v1.ListNamespacesResponse],
    noun: str,
    shown: Callable[[Any], Any],
) -> RestResponse:
    """List what pages have as `noun` as `field`, each item converted by `shown`; items converted to None are left out.

    Damaged items are in the list, because their names are taken, and in `damaged` with the reasons.

    A request without pagination gets everything at once.
    """
    paged = "pageToken" in query or "pageSize" in query
    wanted = v1.PageRequest(page_size=_size(query.get("pageSize")), page_token=query.get("pageToken", ""))
    response = page(wanted)
    items = list(getattr(response, noun))
    while response.page.next_page_token and not paged:
        require_active()
        response = page(v1.PageRequest(page_size=MAX_PAGE_SIZE, page_token=response.page.next_page_token))
        items += getattr(response, noun)
    listed = [each for each in map(shown, items) if each is not None]
    # Always present: some clients take a list without a token for one that is not paginated.
    body = {field: listed, "next-page-token": response.page.next_page_token or None}
    damaged = [{"identifier": shown(item), "damage": item.damage} for item in items if item.damage]
    return json_response({**body, "damaged": damaged} if damaged else body)


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


KEY: Final = "idempotency-key"
OPERATION: Final = "IcebergRest"
UNDER_WAY_S: Final = 60.0

log = logging.getLogger("skiway.rest")


def once(realm: Realm, call: RestCall, act: Callable[[], RestResponse]) -> RestResponse:
    """Return the stored response of the call, or run `act` and store its response. Without a key, only run `act`.

    A response of `act` is stored, also if it reports an error; an exception is not.
    """
    key = short_header(call.headers, KEY)
    if not key or not call.route.changes:
        return act()
    sent = f"{call.route.method} {call.target}\n".encode() + call.body
    slot = Slot(realm, OPERATION, key, b64encode(sha256(sent).digest()).decode())
    found = slot.find()
    return _first(slot, act) if found is None else _replayed(slot, found)


def _first(slot: Slot, act: Callable[[], RestResponse]) -> RestResponse:
    try:
        version = slot.reserve(for_s=UNDER_WAY_S)
    except Conflict:
        raise _under_way(slot.key) from None
    try:
        response = act()
    except BaseException:
        slot.free(version)
        raise
    _store(slot, version, response)
    return response


def _store(slot: Slot, version: int, response: RestResponse) -> None:
    """Store the response. The change is done, so a failure to store the response is not reported to the client."""
    body = response.body if response.stored is None else response.stored
    stored = json.dumps({"status": response.status, "headers": dict(response.headers), "body": body.decode()})
    try:
        slot.complete(version, stored.encode())
    except SkiwayError:
        log.warning("the response to a request with an idempotency key could not be stored", exc_info=True)


def _replayed(slot: Slot, record: v1.IdempotencyRecord) -> RestResponse:
    if not slot.matches(record):
        raise failure(Conflict, "idempotency.mismatch", op="call", idempotency_key=slot.key)
    if not record.answer:
        raise _under_way(slot.key)
    stored = json.loads(record.answer)
    if stored["body"]:  # otherwise there is nothing to see, and a dropped table has no grants any more
        slot.require_rights(record)
    return RestResponse(stored["status"], stored["body"].encode(), stored["headers"])


def _under_way(key: str) -> Unavailable:
    return Unavailable(
        f"a request with the idempotency key {key} is still running: send it again in a moment",
        key="idempotency.under_way",
    )
