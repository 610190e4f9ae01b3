"""A small message that expands to a large one is rejected at the limit, and does not cost the memory of the large one."""

from __future__ import annotations

import zlib
from pathlib import Path

from runtime.compressed_calls import MIB, answer_to, zeros
from runtime.test_idle_clients import CHECK, FLIGHT, REFLECTION, served
from skiway.airport import CatalogBuilder, Server

BOMB = 48
REJECTED = (b"grpc-status\x018", b"Decompressed message larger than max")
HEADERS = {"authorization": "Bearer secret", "airport-operation": "insert"}
METHODS = (
    "/skiway.v1.CatalogService/ListCatalogs",
    "/skiway.v1.TableStatisticsService/PutColumnStats",
    CHECK,
    REFLECTION,
    *(FLIGHT + name for name in ("Handshake", "GetFlightInfo", "DoGet", "DoAction", "DoExchange", "DoPut")),
)


def memory(which: str) -> int:
    """A number about the memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def test_the_client_sends_what_it_should() -> None:
    assert zlib.decompress(zeros(3), 31) == bytes(3 * MIB)


def test_message_that_expands_beyond_the_limit_is_rejected_before_it_takes_memory() -> None:
    bomb = zeros(BOMB)
    with served(max_message_bytes=MIB) as address:
        answer_to(address, METHODS[0], zeros(1), HEADERS)  # the server has started everything
        for method in METHODS:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = memory("VmRSS")
            answer = answer_to(address, method, bomb, HEADERS)
            assert all(each in answer for each in REJECTED), (method, answer)
            assert memory("VmHWM") - before < BOMB * MIB // 3, method


def test_server_of_the_library_rejects_it_too() -> None:
    with Server(CatalogBuilder("demo").build(), port=0, max_message_bytes=MIB) as server:
        answer = answer_to(f"127.0.0.1:{server.port}", FLIGHT + "DoAction", zeros(BOMB), {})
    assert all(each in answer for each in REJECTED), answer


def test_compressed_message_within_the_limit_is_read() -> None:
    with served(max_message_bytes=2 * MIB) as address:
        answer = answer_to(address, METHODS[0], zeros(1), HEADERS)
    assert b"is not a skiway.v1.ListCatalogsRequest" in answer
