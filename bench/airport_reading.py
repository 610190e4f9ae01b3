"""Airport reading: scan throughput, small scans, discovery, and two processes on one port."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from bench.load import Client, rate
from bench.report import Figure
from bench.servers import TABLES, running

ROUNDS = 5


def compare(
    bare: int, ours: int, clients: int, work: Callable[[Client], float], times: int, *, peer_kind: type[Client] = Client
) -> tuple[float, float, float]:
    """Median rates of the peer and of our server, and the median ratio of runs made directly after each other."""
    peers = [peer_kind(bare, bare=True) for _ in range(clients)]
    own = [Client(ours, bare=False) for _ in range(clients)]
    for client in (*peers, *own):
        work(client)  # the first call connects
    pairs = [(rate(peers, work, times), rate(own, work, times)) for _ in range(ROUNDS)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def scan(client: Client) -> float:
    return client.scan("big", 4) / 1e6


def small(client: Client) -> float:
    client.scan("small", 2)
    return 1


def discover(client: Client) -> float:
    client.list_schemas()
    return 1


def figures() -> Iterator[Figure]:
    """Yield the figures of this part."""
    with running("bare") as bare, running("ours") as ours:
        for clients in (1, 4):
            peer, own, ratio = compare(bare, ours, clients, scan, 2)
            yield Figure(f"scan, {clients} clients", "MB/s", own, peer, ratio, aim=0.85)
        for clients in (1, 4):
            peer, own, ratio = compare(bare, ours, clients, small, 300)
            yield Figure(f"small scans, {clients} clients", "1/s", own, peer, ratio, aim=0.65)
        peer, own, ratio = compare(bare, ours, 1, discover, 50)
        yield Figure(f"discovery of {TABLES:,} tables, unchanged", "1/s", own, peer, ratio)
        yield Figure(f"discovery of {TABLES:,} tables, unchanged", "ms", 1000 / own, 1000 / peer, aim_below=5)
    yield two_processes()


def two_processes() -> Figure:
    """Compare small scans on one process with small scans on two processes that share a port."""
    with running("ours-shared") as alone:
        single = [Client(alone, bare=False) for _ in range(4)]
        rate(single, small, 20)
        one = statistics.median(rate(single, small, 300) for _ in range(ROUNDS))
        with running("ours-shared", alone):
            # the kernel distributes connections: open enough of them that both processes get some
            spread = [Client(alone, bare=False) for _ in range(8)]
            rate(spread, small, 20)
            two = statistics.median(rate(spread, small, 150) for _ in range(ROUNDS))
    return Figure("small scans, two processes on one port", "1/s", two, one, two / one, aim=1.5, peer_is="one process")
