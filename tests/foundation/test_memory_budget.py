"""Above the memory budget new work fails, running work continues, and an idle process always works."""

from __future__ import annotations

import ctypes
import gc
import io
import os
import platform
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from skiway.airport import CatalogBuilder, Limits, ScanOptions, Server
from skiway.client import AirportClient
from skiway.errors import LimitExceeded
from skiway.foundation.memory_budget import (
    MemoryBudget,
    arrow_bytes,
    available_bytes,
    collect_and_release,
    resident_bytes,
)

MIB = 1 << 20


class Process:
    """A process whose memory and time are numbers."""

    def __init__(self) -> None:
        self.used, self.now = 50 * MIB, 0.0

    def budget(self, limit: int) -> MemoryBudget:
        return MemoryBudget(limit, measure=lambda: self.used, clock=lambda: self.now)


def test_new_work_is_rejected_while_the_budget_is_exceeded() -> None:
    process = Process()
    budget = process.budget(100 * MIB)
    with budget.work():
        process.used, process.now = 150 * MIB, 1.0
        with pytest.raises(
            LimitExceeded, match="uses 150 MiB of memory, and its budget is 100 MiB: try again"
        ) as refused:
            budget.begin()
        assert refused.value.key == "memory.exceeded"
        process.used, process.now = 90 * MIB, 2.0
        with budget.work():
            pass


def test_process_without_running_work_accepts_a_call() -> None:
    process = Process()
    budget = process.budget(100 * MIB)
    process.used = 150 * MIB
    for _ in range(3):
        with budget.work(), pytest.raises(LimitExceeded):
            budget.begin()


def test_without_a_limit_nothing_is_measured() -> None:
    budget = MemoryBudget(0, measure=lambda: 1 // 0)
    with budget.work(), budget.work():
        pass


def test_memory_is_measured() -> None:
    before = resident_bytes()
    assert 10 * MIB < before < available_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert resident_bytes() - before > 48 * MIB
    del held


class Allocated(ctypes.Structure):
    """The result of glibc's `mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in ["a", "b", "c", "d", "mapped", "e", "f", "used", "g", "h"]]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 tells how much memory is allocated")
def test_size_of_a_small_table_in_a_cache_is_that_in_memory() -> None:
    """A list of files with one row has 400 bytes of values, and takes 30 KB."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Allocated

    def allocated() -> int:
        found = libc.mallinfo2()
        return int(found.mapped + found.used + pa.total_allocated_bytes())

    bounds = pa.struct({"min": pa.binary(), "max": pa.binary(), "nulls": pa.int64()})
    schema = pa.schema({"path": pa.string(), "columns": bounds} | {f"c{number}": bounds for number in range(8)})
    made = pa.Table.from_pylist([{"path": "x", "columns": {"min": b"1", "max": b"2", "nulls": 0}}], schema=schema)
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, schema) as stream:
        stream.write_table(made)
    before = allocated()
    held = [pa.ipc.open_stream(sent.getvalue()).read_all() for _ in range(50)]
    taken = (allocated() - before) / len(held)
    assert taken / 2 < arrow_bytes(made) < 3 * taken


def test_scan_beyond_the_budget_of_a_server_is_rejected_and_the_running_one_continues() -> None:
    builder = CatalogBuilder("demo")
    batch = pa.record_batch({"x": range(1000)})
    held: list[bytearray] = []
    go = threading.Event()

    @builder.schema("s").table(schema=batch.schema)
    def t(_scan: ScanOptions) -> Iterator[pa.RecordBatch]:
        yield batch
        held.append(bytearray(b"x" * (256 * MIB)))
        go.wait(200)
        yield batch

    pa.default_memory_pool().release_unused()  # as the server does before it rejects a scan
    limit = resident_bytes() + 128 * MIB
    with (
        Server(builder.build(), port=0, limits=Limits(memory_bytes=limit)) as server,
        AirportClient(server.location, "demo") as db,
        AirportClient(server.location, "demo") as other,
    ):
        running = iter(db.scan("s.t"))
        rows = next(running).num_rows
        until(lambda: bool(held))
        with pytest.raises(LimitExceeded, match="try again when running statements have ended"):
            other.scan("s.t").read_all()
        go.set()
        rows += sum(each.num_rows for each in running)
        assert rows == 2000
        held.clear()
        assert other.scan("s.t").read_all().num_rows == 2000


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


FRAGMENTS = """
from skiway.foundation.memory_budget import release_unused, resident_bytes
blocks = [bytearray(2000) for _ in range(50_000)]
kept = blocks[::1000]
blocks.clear()
freed = resident_bytes()
release_unused()
print((freed - resident_bytes()) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators return memory by themselves, or never")
def test_freed_memory_between_used_blocks_is_returned_to_the_system() -> None:
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", FRAGMENTS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 60


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cyclic_garbage_is_returned_however_old_it_is() -> None:
    node = Node()
    gc.collect()  # it is an old object now
    weak = weakref.ref(node)
    gc.disable()
    try:
        del node
        assert weak() is not None
        collect_and_release()
        assert weak() is None
    finally:
        gc.enable()


ARENAS = """
import ctypes, threading
from skiway.cli.options import prepare_memory
prepare_memory()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.fopen.restype = [ctypes.c_size_t], ctypes.c_void_p
ready = threading.Barrier(17)
def allocate():
    libc.malloc(1000)
    ready.wait(100)
threads = [threading.Thread(target=allocate) for _ in range(16)]
for thread in threads:
    thread.start()
ready.wait(100)
libc.malloc_info(0, ctypes.c_void_p(out := libc.fopen(b"/dev/stdout", b"w")))
libc.fclose(ctypes.c_void_p(out))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no arenas")
def test_a_server_has_as_many_arenas_as_cores() -> None:
    ended = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True, check=True)
    assert 1 <= ended.stdout.count("<heap nr=") <= (os.cpu_count() or 1)
