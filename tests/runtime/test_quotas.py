"""Quotas hold in all doors of a process together, and one account's do not touch another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from airport.raw import SERVICE, descriptor
from rest.rest_server import listening
from skiway.airport.wire.frames import metadata_frame
from skiway.config.server import Quota
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.memory_budget import MemoryBudget
from skiway.lake import Handles, Sources, airport_service
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.platform import signing_key
from skiway.metastore.resources import accounts, catalogs
from skiway.model import flight_pb2 as flight
from skiway.model import v1
from skiway.request_path import Access, Quotas
from skiway.rest import RestApp, RestOptions
from skiway.rpc import Door
from skiway.security import MemorySecrets, PermissionAuthorizer, Principal, Roles
from skiway.storage import Stores, open_stores

LIST = "/skiway.v1.CatalogService/ListCatalogs"
QUERY = "/skiway.v1.QueryService/GetQuery"
UNLIMITED = MemoryBudget(0)
MAX_BODY = 20_000
FREE = Quota(calls=0, scans=0, exchanges=0, handshakes=0, queries=0, per_second=0)
Code = grpc.StatusCode


class ByToken:
    """The token is `subject@account`."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        subject, _, account = headers["authorization"].removeprefix("Bearer ").partition("@")
        return Principal(subject, account, frozenset({"administrator"}), Roles().permissions(["administrator"]))


class RecordedQuotas(Quotas):
    """Quotas that record how many bytes each call counted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sizes: list[int] = []

    def release(self, kind: Any, usages: Any, size: int) -> None:
        self.sizes.append(size)
        super().release(kind, usages, size)


@dataclass
class Process:
    """The doors of a process."""

    grpc: str
    rest: str
    quotas: RecordedQuotas
    app: RestApp

    def code(self, token: str, method: str, *messages: bytes, headers: Mapping[str, str] | None = None) -> Code:
        """The status of a call."""
        return self.answer(token, method, *messages, headers=headers)[0]

    def answer(
        self,
        token: str,
        method: str,
        *messages: bytes,
        headers: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> tuple[Code, list[bytes]]:
        """The status of a call, and its messages, of which it reads at most `most`."""
        with grpc.insecure_channel(self.grpc) as channel:
            sent = {"authorization": f"Bearer {token}", **(headers or {})}
            call = channel.stream_stream(method)(iter(messages), metadata=tuple(sent.items()), timeout=200)
            received: list[bytes] = []
            with suppress(grpc.RpcError):
                received += islice(call, most)
            if most is not None:
                call.cancel()
            return call.code(), received

    def is_refused(self, token: str) -> bool:
        return self.code(token, LIST, b"") is Code.RESOURCE_EXHAUSTED

    def airport(self, token: str) -> Code:
        action = flight.Action(type="list_schemas", body=b"\x81\xaccatalog_name\xa4lake").SerializeToString()
        return self.code(token, SERVICE + "DoAction", action)

    def http(self, token: str) -> int:
        return httpx.get(f"{self.rest}/v1/lake/namespaces", headers={"authorization": f"Bearer {token}"}).status_code

    @contextmanager
    def open(self, token: str, method: str, *, sending: bytes = b"", **headers: str) -> Iterator[None]:
        """A call that is open within the block."""
        done = threading.Event()

        def messages() -> Iterator[bytes]:
            if sending:
                yield sending
            done.wait(200)

        sent = {
            "authorization": f"Bearer {token}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.stream_stream(method)(messages(), metadata=tuple(sent.items()), timeout=200)
            until(lambda: any(usage.open for usage in self.quotas._usage.values()))
            yield
            done.set()
            call.cancel()


@contextmanager
def process(
    folder: Path,
    stores: Stores,
    caller: Quota,
    account: Quota,
    *,
    pause_s: float = 0.0,
    memory: MemoryBudget = UNLIMITED,
) -> Iterator[Process]:
    quotas = RecordedQuotas(caller, account, pause_s=pause_s)
    access = Access(
        lambda who: Realm(stores, who.account_id), ByToken(), PermissionAuthorizer(), quotas=quotas, memory=memory
    )
    warehouse = Warehouse.at(str(folder))
    secrets = MemorySecrets()
    key = signing_key(stores, secrets)
    handles = Handles(Sources(secrets), warehouse)
    rpc, airport = Door(access), airport_service(access, handles=handles, key=key)
    server = grpc.server(ThreadPoolExecutor(1))
    for service in (rpc, airport):
        service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    rest = RestApp(access, warehouse=warehouse, options=RestOptions(max_body_bytes=MAX_BODY))
    try:
        with listening(rest) as uri:
            yield Process(f"127.0.0.1:{port}", uri, quotas, rest)
    finally:
        server.stop(0).wait()
        for part in (rpc, airport, rest):
            part.close()


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        for name in ("a1", "a2"):
            spec = v1.AccountSpec(display_name=name)
            accounts.create(
                Realm(opened, PLATFORM), v1.CreateAccountRequest(spec=spec, account_id=v1.ResourceId(id=name))
            )
            catalogs.create(Realm(opened, name), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake")))
        yield opened


def test_rate_is_shared_by_all_doors(tmp_path: Path, stores: Stores) -> None:
    with process(tmp_path, stores, FREE, Quota(per_second=0.001)) as served:
        assert served.code("ada@a1", LIST, b"") is Code.OK
        assert served.code("bob@a1", LIST, b"") is Code.RESOURCE_EXHAUSTED
        assert served.airport("ada@a1") is Code.RESOURCE_EXHAUSTED
        assert served.http("ada@a1") == 429
        assert served.airport("ada@a2") is Code.OK


@pytest.mark.parametrize("door", ["rpc", "airport", "http"])
def test_every_door_counts(tmp_path: Path, stores: Stores, door: str) -> None:
    with process(tmp_path, stores, Quota(per_second=0.001), FREE) as served:
        calls = {"rpc": lambda: served.code("ada@a1", LIST, b""), "airport": lambda: served.airport("ada@a1")}
        first = calls[door]() if door != "http" else served.http("ada@a1")
        assert first in (Code.OK, 200)
        assert served.code("ada@a1", LIST, b"") is Code.RESOURCE_EXHAUSTED
        assert served.code("bob@a1", LIST, b"") is Code.OK


@pytest.mark.parametrize(
    ("kind", "method", "headers"),
    [
        ("calls", LIST, {}),
        ("queries", QUERY, {}),
        ("scans", SERVICE + "DoGet", {}),
        ("handshakes", SERVICE + "Handshake", {}),
        ("exchanges", SERVICE + "DoExchange", {"airport_operation": "insert"}),
        ("exchanges", SERVICE + "DoPut", {}),
    ],
)
def test_open_calls_of_a_kind_are_limited(
    tmp_path: Path, stores: Stores, kind: str, method: str, headers: dict[str, str]
) -> None:
    """A call that waits for its client's request is open; after it has ended, the next one is accepted."""
    with process(tmp_path, stores, Quota(**{kind: 1}), FREE) as served:  # type: ignore[arg-type]

        def code(token: str) -> Code:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return served.code(token, method, headers=sent)

        with served.open("ada@a1", method, **headers):
            assert code("ada@a1") is Code.RESOURCE_EXHAUSTED
            assert code("bob@a1") is not Code.RESOURCE_EXHAUSTED
            assert code("ada@a2") is not Code.RESOURCE_EXHAUSTED
        until(lambda: code("ada@a1") is not Code.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("door", ["rpc", "airport", "http", "rejected rpc", "rejected http"])
def test_bytes_are_charged_by_every_door(tmp_path: Path, stores: Stores, door: str) -> None:
    """A request that is rejected for its content counts as well."""
    with process(tmp_path, stores, Quota(bytes_per_second=1), FREE) as served:

        def post(token: str) -> int:
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            return httpx.post(f"{served.rest}/v1/lake/namespaces", headers=headers, content=b"{]" * 5000).status_code

        calls: dict[str, Callable[[str], Code | int]] = {
            "rpc": lambda token: served.code(token, LIST, b""),
            "airport": served.airport,
            "http": served.http,
            "rejected rpc": lambda token: served.code(token, LIST, b"\xff" * 10_000),
            "rejected http": post,
        }
        expected = Code.INVALID_ARGUMENT if door == "rejected rpc" else 400 if door == "rejected http" else None
        assert calls[door]("ada@a1") in ((expected,) if expected else (Code.OK, 200))
        until(lambda: not served.quotas._usage["caller", "a1", "ada"].open)
        if expected:
            assert served.quotas._usage["caller", "a1", "ada"].size < -9_000, "the request did not count"
        assert served.is_refused("ada@a1")  # asked only once, because the question counts as well
        assert served.code("eve@a1", LIST, b"") is Code.OK


LIST_SCHEMAS = flight.Action(type="list_schemas", body=b"\x81\xaccatalog_name\xa4lake").SerializeToString()
GREETING = flight.HandshakeRequest(payload=b"hello" * 100).SerializeToString()


@pytest.mark.parametrize(
    ("method", "sent", "headers", "code"),
    [
        (LIST, [b""], {}, Code.OK),
        (LIST, [b"\xff" * 500], {}, Code.INVALID_ARGUMENT),
        ("/skiway.v1.TableStatisticsService/PutColumnStats", [b"\xff" * 500], {}, Code.INVALID_ARGUMENT),
        (SERVICE + "DoAction", [LIST_SCHEMAS], {}, Code.OK),
        (SERVICE + "DoAction", [LIST_SCHEMAS], {"airport-action-name": "list_schemas"}, Code.OK),
        (SERVICE + "ListFlights", [b""], {}, Code.OK),
        (SERVICE + "Handshake", [GREETING, GREETING], {}, Code.OK),
        (SERVICE + "DoGet", [b"\xff" * 500], {}, Code.INVALID_ARGUMENT),
        (SERVICE + "DoExchange", [b"\xff" * 500], {"airport-operation": "insert"}, Code.INVALID_ARGUMENT),
    ],
)
def test_all_bytes_of_a_grpc_call_count(
    tmp_path: Path, stores: Stores, method: str, sent: list[bytes], headers: dict[str, str], code: Code
) -> None:
    with process(tmp_path, stores, FREE, FREE) as served:
        found, received = served.answer("ada@a1", method, *sent, headers=headers)
        assert (found, bool(received)) == (code, code is Code.OK)
        until(lambda: bool(served.quotas.sizes))
        assert served.quotas.sizes == [sum(map(len, [*sent, *received]))]


def test_bytes_of_a_response_stream_count(tmp_path: Path, stores: Stores) -> None:
    with process(tmp_path, stores, FREE, FREE) as served:
        _, received = served.answer("ada@a1", "/skiway.v1.EventService/WatchEvents", b"", most=1)
        until(lambda: bool(served.quotas.sizes))
        assert served.quotas.sizes[0] >= len(received[0]) > 0


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b"{]" * 500, "application/json", 400),
        (b'{"namespace": []}', "application/json", 400),
        (b"{}" * 500, "text/plain", 415),
        ([b" " * 10_000] * 3, "application/json", 413),
    ],
)
def test_all_bytes_of_an_http_call_count(
    tmp_path: Path, stores: Stores, content: bytes | list[bytes], media: str, status: int
) -> None:
    """A body that is rejected before it is complete counts as far as it was received."""
    with process(tmp_path, stores, FREE, FREE) as served:
        headers = {"authorization": "Bearer ada@a1", "content-type": media}
        answer = httpx.post(f"{served.rest}/v1/lake/namespaces", headers=headers, content=content)
        assert answer.status_code == status, answer.text
        until(lambda: bool(served.quotas.sizes))
        (size,) = served.quotas.sizes
        assert size > MAX_BODY if status == 413 else len(content) <= size <= len(content) + len(answer.content)


def test_bytes_of_an_http_response_count(tmp_path: Path, stores: Stores) -> None:
    with process(tmp_path, stores, FREE, FREE) as served:
        answer = httpx.get(f"{served.rest}/v1/lake/namespaces", headers={"authorization": "Bearer ada@a1"})
        until(lambda: bool(served.quotas.sizes))
        assert served.quotas.sizes == [len(answer.content)]


def test_exchange_that_waits_for_rows_is_open(tmp_path: Path, stores: Stores) -> None:
    """As DuckDB's UPDATE does: the descriptor was sent, the rows follow later."""
    opening = metadata_frame(descriptor=descriptor("lake", "s", "t"))
    with process(tmp_path, stores, FREE, Quota(exchanges=1)) as served:
        exchange = SERVICE + "DoExchange"
        headers = {"airport-operation": "insert"}
        assert served.code("ada@a1", exchange, opening, headers=headers) is Code.NOT_FOUND
        with served.open("ada@a1", exchange, airport_operation="insert"):
            assert served.code("bob@a1", exchange, opening, headers=headers) is Code.RESOURCE_EXHAUSTED
            assert served.code("ada@a2", exchange, opening, headers=headers) is Code.NOT_FOUND


def test_every_door_rejects_new_work_beyond_the_memory_budget(tmp_path: Path, stores: Stores) -> None:
    memory = MemoryBudget(1 << 20, measure=lambda: 2 << 20)
    with process(tmp_path, stores, FREE, FREE, memory=memory) as served:
        with served.open("ada@a1", SERVICE + "DoExchange", airport_operation="insert"):
            assert served.code("bob@a2", LIST, b"") is Code.RESOURCE_EXHAUSTED
            assert served.airport("bob@a2") is Code.RESOURCE_EXHAUSTED
            assert served.http("bob@a2") == 503
        until(lambda: served.code("bob@a2", LIST, b"") is Code.OK)
        assert served.airport("bob@a2") is Code.OK
        assert served.http("bob@a2") == 200


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
