"""Tables in a Hive Metastore: what is listed and read, at which addresses, and what wrong answers lead to.

The metastore is a small one in this process; tests/lake/test_hive_mirror.py uses that of Apache Hive.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from formats.hive_service import CURRENT, OLD, HiveService, accepting, running_hive
from metastore.upstreams import iceberg
from skiway.config.source_access import AddressRule
from skiway.errors import (
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    Unavailable,
    Unsupported,
)
from skiway.formats import Source, open_source
from skiway.formats.catalogs import hive
from skiway.security.source_access import SourceAccess

NOT_ICEBERG = {
    "hive_table": {"EXTERNAL": "TRUE"},
    "delta_table": {"table_type": "delta"},
    "no_parameters": None,
    "iceberg_view": {"table_type": "ICEBERG-VIEW", "metadata_location": "file:///anywhere"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hive")


@pytest.fixture(scope="module")
def filled(folder: Path) -> Iterator[HiveService]:
    """A metastore with a database `sales`: the Iceberg tables `orders` and `lower`, and tables that cannot be read."""
    rows = pa.table({"Id": [1, 2]})
    table = iceberg(folder).create_table("sales.orders", rows.schema)
    table.append(rows)
    with running_hive() as running:
        running.databases = {"default": {}, "sales": {}}
        running.add_iceberg("sales.orders", table.metadata_location)
        running.add("sales.lower", {"table_type": "iceberg", "metadata_location": table.metadata_location})
        for name, parameters in NOT_ICEBERG.items():
            running.add(f"sales.{name}", parameters)
        running.add("sales.a_view", {}, "VIRTUAL_VIEW")
        running.add("sales.without_metadata", {"table_type": "ICEBERG"})
        running.add_iceberg("sales.outside", "file:///etc/passwd")
        running.add_iceberg("sales.in_hdfs", "hdfs://cluster/sales/metadata/1.metadata.json")
        yield running


@pytest.fixture
def service(filled: HiveService) -> Iterator[HiveService]:
    filled.calls.clear()
    filled.users.clear()
    yield filled
    filled.without, filled.failure = (), ""


def opened(service: HiveService, folder: Path, *, access: SourceAccess | None = None, **options: str) -> Source:
    given = {"warehouse": str(folder), **options}
    return open_source("hive", service.address, options=given, access=access)


def of_callers(*rules: str, **more: Any) -> SourceAccess:
    addresses = tuple(map(AddressRule.parsed, rules))
    return SourceAccess(addresses=addresses, for_callers=True, ambient_credentials=False, **more)


# --- listing and reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["", "thrift://loopback", "loopback"])
def test_iceberg_tables_are_listed_and_read(service: HiveService, folder: Path, rule: str) -> None:
    access = of_callers(rule, local_roots=(str(folder),)) if rule else None
    with opened(service, folder, access=access) as source:
        assert source.namespaces() == [("default",), ("sales",)]
        assert source.tables(("sales",)) == ["in_hdfs", "lower", "orders", "outside", "without_metadata"]
        assert source.tables(("default",)) == []
        for name in ("orders", "lower"):
            table = source.load(("sales",), name)
            assert table.read(table.snapshots()[-1]).read_all()["Id"].to_pylist() == [1, 2]
        with pytest.raises(NotFound, match=r"no 'sales\.nothing'"):
            source.load(("sales",), "nothing")
        for missing in (("nowhere",), ("sales", "inner")):
            with pytest.raises(NotFound, match=r"no 'nowhere'|no 'sales\.inner'"):
                source.tables(missing)
        with pytest.raises(NotFound):
            source.load(("sales", "inner"), "orders")
    assert service.users == []


def test_names_with_capitals_are_those_of_hive(service: HiveService, folder: Path) -> None:
    with opened(service, folder) as source:
        assert "orders" in source.tables(("Sales",))
        assert source.tables(("Default",)) == []
        assert source.load(("Sales",), "orders").schema.arrow.names == ["Id"]
        with pytest.raises(NotFound, match="no table 'Orders', but 'orders'"):
            source.load(("sales",), "Orders")


@pytest.mark.parametrize(("missing", "called"), [((), CURRENT), (CURRENT, OLD), (OLD, CURRENT)])
def test_old_and_new_versions_of_hive_are_read(
    service: HiveService, folder: Path, missing: tuple[str, ...], called: tuple[str, ...]
) -> None:
    service.without = missing
    with opened(service, folder) as source:
        assert "orders" in source.tables(("sales",))
        assert source.load(("sales",), "orders").snapshots()
    assert set(called) <= set(service.calls)
    assert not set(service.calls) & (set(OLD) if missing == () else set())


def test_many_tables_are_listed_in_parts(service: HiveService, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hive, "_BATCH", 4)
    with opened(service, folder) as source:
        assert source.tables(("sales",)) == ["in_hdfs", "lower", "orders", "outside", "without_metadata"]
    assert service.calls.count("get_table_objects_by_name_req") == 3


def test_threads_can_share_a_source(service: HiveService, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = {name: threading.Event() for name in ("default", "sales")}
    ends = {name: threading.Event() for name in began}
    names = service.get_all_tables

    def waiting(database: str) -> list[str]:
        began[database].set()
        assert ends[database].wait(200)
        return names(database)

    monkeypatch.setattr(service, "get_all_tables", waiting)
    with opened(service, folder) as source, ThreadPoolExecutor(2) as threads:
        source.namespaces()
        first = threads.submit(source.tables, ("default",))
        assert began["default"].wait(200)
        second = threads.submit(source.tables, ("sales",))
        assert began["sales"].wait(200)
        ends["default"].set()
        assert first.result(200) == []
        ends["sales"].set()
        assert "orders" in second.result(200)


def test_tables_that_were_not_asked_for_are_not_listed(
    service: HiveService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(database: str, names: list[str]) -> list[Any]:
        orders, other = service.databases["sales"]["orders"], copy(service.databases["sales"]["orders"])
        other.tableName = "other"
        return [orders, orders, other]

    monkeypatch.setattr(service, "get_table_objects_by_name", answered)
    with opened(service, folder) as source:
        assert source.tables(("sales",)) == ["orders"]


def test_database_that_is_dropped_meanwhile_is_not_found(
    service: HiveService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "get_all_tables", lambda _: ["orders"])
    with opened(service, folder) as source, pytest.raises(NotFound, match="no 'dropped'"):
        source.tables(("dropped",))


def test_other_tables_and_locations_are_refused(service: HiveService, folder: Path) -> None:
    with opened(service, folder) as source:
        for name in (*NOT_ICEBERG, "a_view"):
            with pytest.raises(
                Unsupported, match=rf"'sales\.{name}' in the Hive Metastore is not an Iceberg"
            ) as raised:
                source.load(("sales",), name)
            assert raised.value.key == "table.feature"
        with pytest.raises(PreconditionFailed, match=r"'sales\.without_metadata' has no metadata_location"):
            source.load(("sales",), "without_metadata")
        with pytest.raises(PermissionDenied) as refused:
            source.load(("sales",), "outside")
        assert refused.value.key == "location.outside"
        with pytest.raises(Unsupported, match=r"'sales\.in_hdfs' cannot be read: .* unsupported scheme 'hdfs'"):
            source.load(("sales",), "in_hdfs")
    with opened(service, folder / "elsewhere") as source, pytest.raises(PermissionDenied) as refused:
        source.load(("sales",), "orders")
    assert refused.value.key == "location.outside"
    for access in (of_callers("loopback", local_roots=("/srv/others",)), SourceAccess(closed=(str(folder),))):
        with opened(service, folder, access=access) as source, pytest.raises(PermissionDenied) as refused:
            source.load(("sales",), "orders")
        assert refused.value.key == "location.refused"


def test_user_of_the_connector_is_told(service: HiveService, folder: Path) -> None:
    for ugi in ("alice", "alice:staff, sales"):
        with opened(service, folder, ugi=ugi) as source:
            source.namespaces()
    assert service.users == [("alice", []), ("alice", ["staff", "sales"])]


# --- definitions and addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "options", "key", "message"),
    [
        ("https://hive.example.com", {}, "location.refused", "does not begin with thrift://"),
        ("thrift://", {}, "location.refused", "it has no host"),
        ("thrift://hive:port", {}, "location.refused", "cannot be parsed"),
        ("thrift://alice:planted@hive:9083", {}, "location.refused", "more than a host and a port"),
        ("thrift://hive:9083,thrift://hive:9083/x", {}, "location.refused", "more than a host and a port"),
        ("thrift://hive", {"ugi": ":staff"}, "source.option", "'ugi' has no user"),
    ],
)
def test_wrong_definitions_are_reported(uri: str, options: dict[str, str], key: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        open_source("hive", uri, options=options)
    assert raised.value.key == key
    assert "planted" not in str(raised.value)


def test_kerberos_is_not_supported() -> None:
    with pytest.raises(Unsupported, match="requires Kerberos cannot be a source"):
        open_source("hive", "thrift://hive:9083", options={"hive.kerberos-authentication": "True"})


@pytest.mark.parametrize("rules", [["public"], ["private"], ["https://loopback"], ["thrift://loopback:1"]])
def test_address_must_be_permitted(service: HiveService, folder: Path, rules: list[str]) -> None:
    access = of_callers(*rules, local_roots=(str(folder),))
    with opened(service, folder, access=access) as source, pytest.raises(PermissionDenied) as refused:
        source.namespaces()
    assert refused.value.key == "address.refused"
    assert service.calls == []


def test_connection_is_made_to_the_address_that_was_checked(
    service: HiveService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["127.0.0.1"])  # later, the name resolves to an address that nothing listens at
    resolve = socket.getaddrinfo

    def changing(host: Any, *arguments: Any, **named: Any) -> Any:
        return resolve(next(answers, "127.0.0.77") if host == "hive.test" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    uri = service.address.replace("127.0.0.1", "hive.test")
    with open_source("hive", uri, access=of_callers("thrift://hive.test")) as source:
        assert source.namespaces() == [("default",), ("sales",)]


def test_next_address_is_used_if_a_server_does_not_respond(service: HiveService, folder: Path) -> None:
    for uri in (
        f"thrift://127.0.0.1:9 ,{service.address}",
        f"thrift://nowhere.invalid:9083, {service.address}",
        f"{service.address},thrift://127.0.0.1:9",
    ):
        with open_source("hive", uri) as source:
            assert source.namespaces() == [("default",), ("sales",)]
    with (
        open_source("hive", "thrift://127.0.0.1:9,thrift://127.0.0.1:10") as source,
        pytest.raises(Unavailable, match="does not respond"),
    ):
        source.namespaces()
    service.calls.clear()
    refused_first = f"thrift://169.254.169.254,{service.address}"
    with open_source("hive", refused_first) as source, pytest.raises(PermissionDenied):
        source.namespaces()
    assert service.calls == []


# --- errors and wrong answers -----------------------------------------------------------------------------------------


def test_error_of_the_metastore_is_reported(service: HiveService, folder: Path) -> None:
    service.failure = "no database behind the metastore"
    with opened(service, folder) as source, pytest.raises(PreconditionFailed, match=r"\(MetaException\)") as raised:
        source.tables(("sales",))
    assert raised.value.key == "source.rejected"
    service.failure, service.without = "", (*CURRENT, *OLD)
    with opened(service, folder) as source, pytest.raises(PreconditionFailed, match=r"\(TApplicationException\)"):
        source.load(("sales",), "orders")


@pytest.fixture
def answering() -> Iterator[Any]:
    """Start a server that reads a request and sends these bytes; with a pause, one byte at a time."""
    with ExitStack() as stack:

        def start(answer: bytes, *, pause: float = 0.0, close: bool = False) -> str:
            class Connection(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    self.request.recv(4096)
                    try:
                        if pause:
                            for each in answer:
                                self.request.sendall(bytes([each]))
                                time.sleep(pause)
                        else:
                            self.request.sendall(answer)
                        while not close and self.request.recv(4096):
                            pass
                    except OSError:
                        return

            return stack.enter_context(accepting(Connection))

        yield start


REPLY = struct.pack("!iI", -2147418112 | 2, 4) + b"name" + struct.pack("!i", 0)
"""The head of a reply in Thrift's binary protocol."""


def of_list(element: int, size: int) -> bytes:
    """The beginning of a reply that is a list."""
    return REPLY + struct.pack("!bhbi", 15, 0, element, size)


NESTED = REPLY + struct.pack("!bh", 12, 99) * 5_000


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", PreconditionFailed, "does not answer like a Hive Metastore"),
        (b"\xff" * 64, PreconditionFailed, "does not answer like a Hive Metastore"),
        (REPLY + b"\x00", PreconditionFailed, r"rejected the request \(TApplicationException\)"),
        (struct.pack("!iI", -2147418112 | 2, 0x7FFFFFFF), PreconditionFailed, "does not answer like"),
        (of_list(11, -1), PreconditionFailed, "does not answer like"),
        (of_list(11, 1) + struct.pack("!i", -5), PreconditionFailed, "does not answer like"),
        (of_list(11, 1) + struct.pack("!i", 2) + b"\xff\xfe\x00", PreconditionFailed, "does not answer like"),
        (NESTED, PreconditionFailed, "does not answer like"),
        (of_list(11, 0x7FFFFFFF), LimitExceeded, "more than 250,000 values"),
        (of_list(11, 2) + struct.pack("!i", 15 << 20) + bytes(15 << 20) + struct.pack("!i", 2 << 20), LimitExceeded, "16 MiB"),
    ],
    ids=[
        *("http", "no-thrift", "no-result", "huge-name", "negative-list", "negative-text", "no-utf8", "nested", "huge-list"),
        "huge-answer",
    ],
)  # fmt: skip
def test_broken_answers_are_clear_errors(answering: Any, answer: bytes, error: type[SkiwayError], message: str) -> None:
    tracemalloc.start()
    try:
        with open_source("hive", answering(answer)) as source, pytest.raises(error, match=message):
            source.namespaces()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_small_answers_cannot_become_many_objects(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of this list of tables is an empty table, which takes a kilobyte of memory."""
    monkeypatch.setattr(hive, "_MAX_VALUES", 1_000)
    inner = REPLY + struct.pack("!bh", 12, 0) + struct.pack("!bhbi", 15, 1, 12, 900) + bytes(902)
    names = of_list(11, 1) + struct.pack("!i", 1) + b"t" + b"\x00"
    with accepting(_in_turn(names, inner)) as uri, open_source("hive", uri) as source, pytest.raises(LimitExceeded):
        source.tables(("sales",))


def _in_turn(*answers: bytes) -> type[socketserver.BaseRequestHandler]:
    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for answer in answers:
                self.request.recv(4096)
                self.request.sendall(answer)
            self.request.recv(4096)

    return Connection


def test_silent_and_slow_servers_do_not_respond(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hive, "ANSWER_S", 0.3)
    slow = answering(of_list(11, 0) + b"\x00", pause=0.1)  # each byte is in time, and the answer is not
    for uri in (answering(b""), slow):
        check_unavailable(uri)


def test_server_that_closes_the_connection_does_not_respond(answering: Any) -> None:
    for answer in (b"", REPLY[:6]):
        check_unavailable(answering(answer, close=True))


def check_unavailable(uri: str) -> None:
    started = time.monotonic()
    with open_source("hive", uri) as source, pytest.raises(Unavailable, match="does not respond") as raised:
        source.namespaces()
    assert raised.value.key == "source.unavailable"
    assert time.monotonic() - started < 10
