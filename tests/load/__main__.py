"""The command of `make load`: many clients of several accounts on one server, with mixed statements, on two cores.

Only conflicts and documented limits may fail, the memory of the server stays flat, every client reads what was acknowledged,
and an account that exceeds its quotas does not slow down the others. The command prints figures and fails otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from load.figures import Figures, report
from load.statements import SCHEMA, SHARED, SHARED_ROWS, rows
from runtime.fairness_load import measure_flood
from runtime.servers import Server, skiway, started
from skiway.client import AirportClient
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.resources import accounts, catalogs
from skiway.model import v1
from skiway.security import new_token
from skiway.storage import open_stores

TESTS = Path(__file__).resolve().parents[1]
ACCOUNTS = ("north", "east", "south", "west")
PROCESSES = 4
CORES = 2
SETTINGS = {
    "auth.mode": "token",
    # Caches would fill for hours. Small ones are full after a minute, and then only a leak lets the memory grow.
    "metadata.files.cache_max_weight": 32 << 20,
    "metadata.hint.cache_max_weight": 8 << 20,
    "metadata.graph.cache_max_size": 2000,
}


def main() -> int:
    given = _arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory(prefix="skiway-load-") as folder:
        figures = run(Path(folder) / "home", clients=given.clients, seconds=given.seconds, seed=given.seed)
    if not given.no_fairness:
        figures.fairness = _fairness()
    print(report(figures))
    return 1 if figures.failures() else 0


def run(home: Path, *, clients: int, seconds: float, seed: int) -> Figures:
    """Load a new server for some time, and check its stores at the end."""
    figures = Figures(clients, seconds)
    tokens = prepare(home)
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    with started(home, *settings, fresh=True) as server:
        for token in tokens.values():
            with AirportClient(server.addresses["airport"], "lake", token=token) as db:
                db.create_schema("s")
                db.create_table(SHARED, SCHEMA)
                db.insert(SHARED, rows(0, SHARED_ROWS))
        print(f"{clients} clients for {seconds:.0f} seconds on {server.addresses['airport']}", flush=True)
        with _clients(server, tokens, clients, seed) as processes:
            _watch(server, figures, seconds)
            for process in processes:
                out, _ = process.communicate(timeout=300)
                for account, measured in json.loads(out.splitlines()[-1]):
                    figures.add(account, measured)
        if server.process.poll() is not None:
            figures.violations.append(f"the server ended with {server.process.returncode}")
        elif (code := server.stop()) != 0:
            figures.violations.append(f"the server stopped with {code}")
    checked = skiway("check", "--home", home, timeout_s=300)
    if checked.returncode:
        figures.violations.append(f"skiway check: {checked.stdout[:300]} {checked.stderr[:300]}")
    return figures


def prepare(home: Path) -> dict[str, str]:
    """Create accounts with a catalog each, and a token for each account."""
    home.mkdir(mode=0o700)
    tokens = {name: new_token(f"load {name}", name, roles=["administrator"]) for name in ACCOUNTS}
    (home / "tokens.toml").touch(mode=0o600)
    (home / "tokens.toml").write_text("".join(token.entry.toml() for token in tokens.values()))
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        for name in ACCOUNTS:
            spec, account_id = v1.AccountSpec(display_name=name), v1.ResourceId(id=name)
            accounts.create(Realm(stores, PLATFORM), v1.CreateAccountRequest(spec=spec, account_id=account_id))
            catalogs.create(Realm(stores, name), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake")))
    return {name: token.text.reveal() for name, token in tokens.items()}


@contextmanager
def _clients(server: Server, tokens: dict[str, str], count: int, seed: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of the clients; each has clients of all accounts."""
    wanted = [(ACCOUNTS[number % len(ACCOUNTS)], f"client_{number}", seed * 1000 + number) for number in range(count)]
    command = [sys.executable, "-m", "load.clients"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):
            process = stack.enter_context(
                subprocess.Popen(
                    command, cwd=TESTS, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            assert process.stdin is not None
            share = wanted[number * count // PROCESSES : (number + 1) * count // PROCESSES]
            order = {"addresses": server.addresses, "tokens": tokens, "clients": share}
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
        yield processes


def _watch(server: Server, figures: Figures, seconds: float) -> None:
    """Record the memory of the server until the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.process.poll() is None:
        figures.memory.append(resident_bytes(server.process.pid))
        if len(figures.memory) % 60 == 0:
            print(f"{deadline - time.monotonic():.0f} s left, {figures.memory[-1] >> 20} MiB", flush=True)
        time.sleep(min(1.0, seconds / 30))


def resident_bytes(process_id: int) -> int:
    """The memory of a process."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def _fairness() -> list[tuple[float, float]]:
    """The latency of a quiet account, alone and beside one that exceeds its quotas: until it is fair, at most three times.

    The machine may do other things meanwhile, so one of three measurements must show it.
    """
    found: list[tuple[float, float]] = []
    while len(found) < 3 and all(flooded >= 3 * alone for alone, flooded in found):
        found.append(measure_flood())
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make load ARGS=…", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long the clients run (600)")
    parser.add_argument("--clients", type=int, default=200, help="how many clients there are (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the random statements (1)")
    parser.add_argument("--no-fairness", action="store_true", help="do not measure fairness between accounts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
