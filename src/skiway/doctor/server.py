"""Checks of a running server: it answers, its clock is right, the caller is known to it, and no call is missing.

To see whether a call is there, it is sent a request that cannot be decoded, or a name that does not exist. The server
rejects both before it does anything. Flight SQL has few calls, so a query shows that it works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from skiway import __version__
from skiway.doctor.checks import MAX_SKEW_S, Check, Problem, State

if TYPE_CHECKING:
    import grpc
    import httpx
    from google.protobuf.message import Message


TIMEOUT_S: Final = 10.0
MAX_MESSAGE_BYTES: Final = 4 << 20
UNDECODABLE: Final = b"\xff\xff\xff"
NOWHERE: Final = "skiway-doctor-no-such-name"
FLIGHT: Final = "/arrow.flight.protocol.FlightService"
SHOWN: Final = 3
QUERY: Final = "SELECT 6 * 7 AS answer"
ANSWER: Final = [{"answer": 42}]
NOT_ACCEPTED: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")
FIXES: Final = {
    "spark": "Spark's Java process has ended; the worker starts it again every minute, and the log of the server says why it fails",
    "worker": "a thread of the worker has ended: restart the server; its log says why",
}
"""What to do about parts of which no other check says more."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and who calls. `grpc` is `host:port` or a location; `http`, if it is known, a URL.

    `version` is that of the running process, if it is known.
    """

    grpc: str
    http: str | None = None
    token: str | None = None
    account: str | None = None
    version: str = ""


def server_checks(server: ServerAddress, *, clock: Callable[[], float] = time.time) -> dict[str, Check]:
    """The checks of a running server, by name."""
    return {
        "server": lambda: answers(server),
        "server version": lambda: version(server),
        "readiness": lambda: readiness(server),
        "server clock": lambda: server_clock(server, clock),
        "caller": lambda: caller(server),
        "rpc calls": lambda: rpc_calls(server),
        "airport actions": lambda: airport_actions(server),
        "rest routes": lambda: rest_routes(server),
        "flight sql": lambda: flight_sql(server),
    }


def answers(server: ServerAddress) -> str:
    """The gRPC server can be reached."""
    import grpc

    with _channel(server) as channel:
        try:
            grpc.channel_ready_future(channel).result(TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise Problem(
                f"no server answers at {server.grpc} within {TIMEOUT_S:g} s",
                "start one with `skiway serve`, or name it with --server or SKIWAY_SERVER",
            ) from None
    return f"{server.grpc} answers"


def version(server: ServerAddress) -> str:
    """The server runs the installed version."""
    if not server.version:
        raise Problem("the version of a server on another machine is not known", state=State.skipped)
    if server.version != __version__:
        raise Problem(f"the server runs {server.version}, but {__version__} is installed", "restart the server")
    return f"the server runs {server.version}, as installed"


def readiness(server: ServerAddress) -> str:
    """The server says that all parts work."""
    found = _get(server, "/readyz")
    if found.status_code != 200:
        says = found.text.strip()[:200]
        parts = says.removeprefix("not ready: ").split(", ")
        fixes = [FIXES[part] for part in parts if part in FIXES]
        raise Problem(
            f"{server.http}/readyz says: {says}",
            "; ".join(fixes) or "see the log of the server; the checks of the named parts say more",
        )
    return f"{server.http}/readyz says: {found.text.strip()}"


def server_clock(server: ServerAddress, clock: Callable[[], float]) -> str:
    """The clocks of the server and of this machine agree."""
    sent, found = clock(), _get(server, "/healthz")
    date = found.headers.get("date")
    if date is None:
        raise Problem("the response of the server has no date", state=State.skipped)
    at_server = parsedate_to_datetime(date).timestamp()
    # The header has whole seconds, and the answer took some time.
    skew = max(sent - (at_server + 1), at_server - clock(), 0.0)
    if skew > MAX_SKEW_S:
        raise Problem(
            f"the clocks of the server and of this machine differ by {skew:.0f} s",
            "synchronize both (NTP): tokens would expire too early or too late",
        )
    return f"agrees with this machine within {MAX_SKEW_S:g} s"


def caller(server: ServerAddress) -> str:
    """The server accepts the caller, who sees catalogs."""
    from skiway.client import Metastore

    with Metastore(server.grpc, token=server.token, account=server.account, timeout_s=TIMEOUT_S) as lake:
        names = [str(each) for each in lake.catalogs()]
    if not names:
        raise Problem(
            "the caller is accepted, but sees no catalogs",
            "create one with skiway catalogs create, or ask for a grant (skiway grants create)",
            state=State.warning,
        )
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"accepted{' with its token' if server.token else ''}; sees {', '.join(names[:SHOWN])}{more}"


# -- all calls ---------------------------------------------------------------------------------------------------------


def rpc_calls(server: ServerAddress) -> str:
    """The server has every method of every service."""
    methods = list(_methods())
    with _channel(server) as channel:
        _require_all((name, _status(channel, name, UNDECODABLE, _metadata(server))) for name in methods)
    return f"all {len(methods)} methods answer"


def airport_actions(server: ServerAddress) -> str:
    """The server has every action of Airport."""
    from skiway.airport.server.actions import ACTIONS
    from skiway.airport.wire import protocol
    from skiway.model import flight_pb2 as flight

    def status(channel: grpc.Channel, action: str) -> str:
        data = flight.Action(type=action, body=UNDECODABLE).SerializeToString()
        return _status(channel, f"{FLIGHT}/DoAction", data, [*_metadata(server), (protocol.ACTION_NAME, action)])

    with _channel(server) as channel:
        _require_all((action, status(channel, action)) for action in ACTIONS)
    return f"all {len(ACTIONS)} actions answer"


def rest_routes(server: ServerAddress) -> str:
    """The server has every route of the Iceberg REST catalog."""
    from skiway.rest.app import ROUTES

    def status(method: str, path: str) -> str:
        segments = [NOWHERE if each.startswith("{") else each for each in path.split("/")]
        body = b"{" if method in ("POST", "PUT") else None
        found = _request(server, method, f"/iceberg{'/'.join(segments)}", body)
        if found.status_code >= 500:
            return f"HTTP {found.status_code}"
        is_missing = b"there is no endpoint" in found.content or found.status_code == 405
        return "UNIMPLEMENTED" if is_missing else "answers"

    _require_all((f"{route.method} {route.path}", status(route.method, route.path)) for route in ROUTES)
    return f"all {len(ROUTES)} routes answer"


def flight_sql(server: ServerAddress) -> str:
    """The server answers as BI tools need it: it says what it is, and runs a query."""
    from skiway.model import flight_sql_pb2 as sql

    with _channel(server) as channel:
        info = _flight_sql_rows(server, channel, "GetSqlInfo", sql.CommandGetSqlInfo(info=[0, 1]))
        name = " ".join(str(row["value"]) for row in info)
        rows = _flight_sql_rows(server, channel, "a query", sql.CommandStatementQuery(query=QUERY))
    if rows != ANSWER:
        raise Problem(f"{QUERY} returned {str(rows)[:100]} instead of {ANSWER}", "see the log of the server")
    return f"{name} runs queries"


def _flight_sql_rows(server: ServerAddress, channel: grpc.Channel, what: str, command: Message) -> list[dict[str, Any]]:
    """The rows of a command, requested and read as a driver does."""
    import grpc

    from skiway.airport.wire.frames import BatchReader
    from skiway.flightsql.protocol import encode
    from skiway.model import flight_pb2 as flight

    asked = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=encode(command)).SerializeToString()
    get_info: Any = channel.unary_unary(f"{FLIGHT}/GetFlightInfo", None, flight.FlightInfo.FromString)
    read: Any = channel.unary_stream(f"{FLIGHT}/DoGet")
    metadata = _metadata(server)
    try:
        found = get_info(asked, metadata=metadata, timeout=TIMEOUT_S)
        frames = read(found.endpoint[0].ticket.SerializeToString(), metadata=metadata, timeout=TIMEOUT_S)
        return [row for batch in BatchReader(frames) for row in batch.to_pylist()]
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        if code.name in NOT_ACCEPTED:
            raise Problem(
                f"the caller may not use it: {error.details()}", "see the check caller", state=State.skipped
            ) from None
        raise Problem(
            f"{what} of Flight SQL: {code.name} {error.details()}",
            "if it is UNIMPLEMENTED, the server is older than this command: upgrade it; otherwise see its log",
        ) from None


def _require_all(statuses: Iterable[tuple[str, str]]) -> None:
    wrong = [
        f"{name}: {status}"
        for name, status in statuses
        if status in ("UNIMPLEMENTED", "INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED") or "HTTP" in status
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise Problem(
            f"{'; '.join(wrong[:SHOWN])}{more}",
            "if calls are UNIMPLEMENTED, the server is older than this command: upgrade it; otherwise see its log",
        )


def _methods() -> Iterator[str]:
    """The paths of all methods of the metastore."""
    from skiway.rpc.services import all_services

    for service in all_services():
        yield from (f"/{service.full_name}/{method.name}" for method in service.methods())


def _status(channel: grpc.Channel, method: str, data: bytes, metadata: list[tuple[str, str]]) -> str:
    """The status of a call that the server must reject."""
    import grpc

    # A stream in both directions fits every kind of method.
    call: Any = channel.stream_stream(method)
    try:
        for _ in call(iter([data]), metadata=metadata, timeout=TIMEOUT_S):
            break
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code.name
    return "OK"


def _metadata(server: ServerAddress) -> list[tuple[str, str]]:
    from skiway.client.metastore.calls import ACCOUNT

    found = [("authorization", f"Bearer {server.token}")] if server.token else []
    return [*found, (ACCOUNT, server.account)] if server.account else found


@contextmanager
def _channel(server: ServerAddress) -> Iterator[grpc.Channel]:
    from skiway.client.connection import Channel, Location

    location = Location.parse(Location.with_scheme(server.grpc))
    channel = Channel(location, tls=None, max_message_bytes=MAX_MESSAGE_BYTES)
    try:
        yield channel.open()
    finally:
        channel.close()


def _get(server: ServerAddress, path: str) -> httpx.Response:
    return _request(server, "GET", path, None)


def _request(server: ServerAddress, method: str, path: str, body: bytes | None) -> httpx.Response:
    import httpx

    if server.http is None:
        raise Problem("the address of the HTTP server is not known", "give it with --http", state=State.skipped)
    sent = {"authorization": f"Bearer {server.token}"} if server.token else {}
    if body is not None:
        sent["content-type"] = "application/json"
    try:
        return httpx.request(method, f"{server.http}{path}", headers=sent, content=body, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise Problem(
            f"{server.http} does not answer: {error}", "start the server, or give its address with --http"
        ) from error
