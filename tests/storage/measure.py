"""Measure pointer and blob stores on this machine: `python tests/storage/measure.py [folder]`.

Prints gets and compare-and-sets per second with p50 and p99, for one and for eight threads, commits (a blob and a batch of
two pointers), and the cost of pages in a long listing. The folder should be on the disk to measure.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from skiway.storage import ABSENT, PointerStore, Put, Stores, open_blobs, open_pointers
from storage.homes import running_postgres

KEYS = 100_000
PAGE = 1000


def load(store: PointerStore) -> None:
    for start in range(0, KEYS, PAGE):
        store.apply([Put(f"/keys/{start + each:08d}", f"blobs/{each}", expect=ABSENT) for each in range(PAGE)])


def timed(work: Callable[[int, int], object], *, threads: int, calls: int) -> str:
    """Calls per second over all threads, and the percentiles of one call."""

    def run(thread: int) -> list[float]:
        taken = []
        for call in range(calls):
            started = time.perf_counter()
            work(thread, call)
            taken.append(time.perf_counter() - started)
        return taken

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        taken = sorted(each for times in pool.map(run, range(threads)) for each in times)
    rate = len(taken) / (time.perf_counter() - started)
    p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    return f"{rate:>9,.0f}/s  p50 {p50 * 1000:7.3f} ms  p99 {p99 * 1000:7.3f} ms"


def measure(name: str, stores: Stores, *, calls: int) -> None:
    store = stores.pointers
    load(store)
    for threads in (1, 8):
        each = calls // threads

        def get(thread: int, call: int) -> None:
            assert store.get(f"/keys/{(thread * 7919 + call * 104_729) % KEYS:08d}")

        def create(thread: int, call: int, threads: int = threads) -> None:
            store.compare_and_set(f"/new/{threads}/{thread}/{call}", "blob", expect=ABSENT)

        def update(thread: int, call: int, threads: int = threads) -> None:
            store.compare_and_set(f"/own/{threads}/{thread}", f"{call}", expect=call)

        def commit(thread: int, call: int, threads: int = threads) -> None:
            uri = stores.blobs.put(
                f"{threads} {thread} {call}".encode() * 50, folder="accounts/a/tables/t", suffix=".pb"
            )
            names = (f"/by-id/{threads}/{thread}/{call}", f"/by-name/{threads}/{thread}/{call}")
            store.apply([Put(key, uri, expect=ABSENT) for key in names])

        print(f"{name:<10} {threads} thread(s)  get     {timed(get, threads=threads, calls=each)}")
        print(f"{name:<10} {threads} thread(s)  create  {timed(create, threads=threads, calls=each // 2)}")
        print(f"{name:<10} {threads} thread(s)  update  {timed(update, threads=threads, calls=each // 2)}")
        print(f"{name:<10} {threads} thread(s)  commit  {timed(commit, threads=threads, calls=each // 4)}")
    print(f"{name:<10} {pages(store)}")


def pages(store: PointerStore) -> str:
    taken, token = [], None
    while not taken or token:
        started = time.perf_counter()
        page = store.page("/keys/", size=PAGE, token=token)
        taken.append(time.perf_counter() - started)
        token = page.next_token
    half = len(taken) // 2
    first, last = sorted(taken[:half])[half // 2], sorted(taken[half:])[half // 2]
    return (
        f"{KEYS:,} keys in {len(taken)} pages of {PAGE:,}: p50 of the first half {first * 1000:.2f} ms, "
        f"of the second half {last * 1000:.2f} ms"
    )


def main(folder: Path) -> None:
    with Stores(open_pointers("memory://"), open_blobs("memory://")) as stores:
        measure("memory", stores, calls=40_000)
    with Stores(open_pointers(f"sqlite:///{folder}/pointers.db"), open_blobs((folder / "s").as_uri())) as stores:
        measure("sqlite", stores, calls=8_000)
    with running_postgres() as url, Stores(open_pointers(url), open_blobs((folder / "p").as_uri())) as stores:
        measure("postgresql", stores, calls=8_000)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        main(Path(folder))
