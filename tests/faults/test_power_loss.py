"""After a power failure, everything that was acknowledged is there: rows, tables, catalogs, connectors and their credentials."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyiceberg.table import StaticTable

from faults.changes import connector_spec
from faults.contents import integrity_errors
from faults.power import Disk, Keeps, Log, compiled, snapshot_of
from faults.tables import SCHEMA, Doors, connected, rows
from metastore.resource_factory import key
from rpc.rpc_server import Client
from runtime.servers import Server, started
from skiway.metastore import Realm, connectors
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.resources import catalogs, namespaces, tables
from skiway.metastore.seeding import DEFAULT_ACCOUNT
from skiway.model import v1
from skiway.security import open_secrets
from skiway.storage import open_stores

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

STATEMENTS = 60
FAILURES = 30


@dataclass
class History:
    """What clients sent and what the server acknowledged, each with the size of the log at that moment."""

    log: Path
    sent: list[tuple[int, str]] = field(default_factory=list)
    acknowledged: list[tuple[int, str]] = field(default_factory=list)

    def run(self, what: str, call: Callable[[], object]) -> None:
        self.sent.append((self.log.stat().st_size, what))
        call()
        self.acknowledged.append((self.log.stat().st_size, what))

    def at(self, position: int) -> tuple[set[str], set[str]]:
        """The statements that are certainly and possibly done if the power fails at this position of the log."""
        certain = {what for end, what in self.acknowledged if end <= position}
        return certain, {what for begin, what in self.sent if begin <= position}


@dataclass(frozen=True)
class Recording:
    """What a server has done to the files of its home, and what clients know about it. `top` is the inode of the home."""

    home: Path
    top: int
    log: Log
    history: History

    def positions(self, count: int) -> list[int]:
        """Random moments after the first acknowledgement, in order.

        Half of them are moments when pointers have just been synced, and what they refer to must be on disk already.
        """
        first, last = self.history.acknowledged[0][0], self.history.log.stat().st_size
        chance = random.Random(1)
        commits = [position for position in self.log.synced("-wal") if position > first]
        return sorted(chance.sample(range(first, last), count - count // 2) + chance.sample(commits, count // 2))

    def fail(self, position: int, keeps: Keeps, **options: Any) -> None:
        """Make the home what it is after a power failure at a position of the log."""
        disk = Disk(self.home, self.top, **options)
        disk.replay(self.log.until(position))
        shutil.rmtree(self.home)
        disk.root.write(self.home, keeps)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("power")
    home, log_file = folder / "home", folder / "changes"
    home.mkdir(mode=0o700)
    top = home.stat().st_ino
    log_file.touch()
    history = History(log_file)
    with pytest.MonkeyPatch.context() as preloading:
        preloading.setenv("LD_PRELOAD", str(compiled(folder)))
        preloading.setenv("RECORDER_ROOT", str(home))
        preloading.setenv("RECORDER_LOG", str(log_file))
        with started(home, fresh=True) as server, closing(RestWriter(server)) as rest:
            preloading.delenv("LD_PRELOAD")
            run_statements(server, rest, history)
    recorded = Log(log_file)
    assert replayed_completely(recorded, home, top, folder / "copy") == snapshot_of(home), "a change was not recorded"
    return Recording(home, top, recorded, history)


def nothing() -> bool:
    """What was not synced is not on disk."""
    return False


def half_of(seed: int) -> Keeps:
    """Half of what was not synced is on disk."""
    chance = random.Random(seed)
    return lambda: chance.random() < 0.5


def test_acknowledged_statements_survive_a_power_failure(recording: Recording) -> None:
    for number, position in enumerate(recording.positions(FAILURES)):
        recording.fail(position, nothing if number % 2 else half_of(number))
        compare(found_by_a_server(recording.home), *recording.history.at(position))


def test_files_contain_acknowledged_statements_after_a_power_failure(recording: Recording) -> None:
    for number, position in enumerate(recording.positions(FAILURES)):
        recording.fail(position, half_of(number) if number % 2 else nothing)
        compare(found_in_files(recording.home), *recording.history.at(position))


SYNCED: dict[str, Callable[[str, bool], bool]] = {
    "blobs": lambda path, is_folder: "blobs" in path and not is_folder,
    "data files": lambda path, _: path.endswith(".parquet"),
    "manifests": lambda path, _: path.endswith(".avro"),
    "metadata": lambda path, _: path.endswith(".json"),
    "secrets": lambda path, is_folder: "secrets/" in path and not path.endswith(".key") and not is_folder,
    "encryption key": lambda path, _: "encryption.key" in path,
    "pointers": lambda path, _: path.endswith("-wal"),
    "folders of blobs": lambda path, is_folder: "blobs" in path and is_folder,
    "folders of the warehouse": lambda path, is_folder: "warehouse" in path and is_folder,
    "folders of secrets": lambda path, is_folder: "secrets" in path and is_folder,
    "the home": lambda path, _: path == ".",
}


@pytest.mark.parametrize("forgotten", SYNCED)
def test_forgotten_sync_is_found(recording: Recording, forgotten: str) -> None:
    """The comparison fails if the server did not sync these files or folders."""

    def is_unsynced(path: Path, is_folder: bool) -> bool:
        return SYNCED[forgotten](str(path.relative_to(recording.home)), is_folder)

    position = recording.positions(FAILURES)[-1]
    recording.fail(position, nothing, is_unsynced=is_unsynced)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever reads a damaged file
        compare(found_in_files(recording.home), *recording.history.at(position))


def replayed_completely(log: Log, home: Path, top: int, copy: Path) -> dict[str, bytes]:
    disk = Disk(home, top)
    disk.replay(log.records)
    disk.root.write(copy, lambda: True)
    return snapshot_of(copy)


class RestWriter:
    """A process with PyIceberg, which writes files itself and does not sync them."""

    SCRIPT = """
import sys, pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
catalog = RestCatalog("lake", uri=sys.argv[1] + "/iceberg", warehouse="lake")
for line in sys.stdin:
    table = catalog.load_table("s.t")
    table.append(pa.table({"id": [int(line)], "word": ["old " + line.strip()]}))
    print("done", flush=True)
"""

    def __init__(self, server: Server) -> None:
        command = [sys.executable, "-c", self.SCRIPT, server.addresses["http"]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def append(self, number: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        self._process.communicate()


def run_statements(server: Server, rest: RestWriter, history: History) -> None:
    """One statement after another: inserts over both doors, new and dropped tables, connectors with credentials."""
    with connected(server.addresses) as doors, grpc.insecure_channel(server.addresses["rpc"]) as channel:
        rpc = Client(channel, caller="")
        history.run("schema", lambda: doors.db.create_schema("s"))
        history.run("table", lambda: doors.db.create_table("s.t", SCHEMA))
        for number in range(1, STATEMENTS + 1):
            history.run(f"row {number}", partial(insert, doors, rest, number))
            if number % 5 == 0:
                history.run(f"table {number}", partial(doors.db.create_table, f"s.t{number}", SCHEMA))
            if number % 10 == 0:
                history.run(f"dropped {number}", partial(doors.db.drop_table, f"s.t{number}"))
                history.run(f"connector {number}", partial(create_connector, rpc, number))


def insert(doors: Doors, rest: RestWriter, number: int) -> None:
    if number % 3:
        doors.db.insert("s.t", rows(number))
    else:
        rest.append(number)


def create_connector(rpc: Client, number: int) -> None:
    request = v1.CreateConnectorRequest(spec=connector_spec(f"connector {number}"), idempotency=key(f"{number}"))
    answer = rpc("ConnectorService/CreateConnector", request, x_skiway_account=DEFAULT_ACCOUNT)
    assert answer.message is not None, answer


def found_by_a_server(home: Path) -> set[str]:
    """The statements whose effects a server shows that starts on what the disk contains."""
    with started(home) as server, connected(server.addresses) as doors:
        found: set[str] = {"schema"} if ("s",) in doors.catalog.list_namespaces() else set()
        state = doors.state() if found else {}
    return found | _statements({name: [row["id"] for row in rows] for name, rows in state.items()}, home)


def found_in_files(home: Path) -> set[str]:
    """The same, from the stores and the files of tables, as PyIceberg reads them."""
    state: dict[str, list[int]] = {}
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        realm = Realm(stores, DEFAULT_ACCOUNT)
        (catalog,) = catalogs.scan(realm)
        schemas = [each for each in namespaces.scan(realm, catalog.resource_id.id) if each.display_name == "s"]
        for schema in schemas:
            for table in tables.scan(realm, schema.resource_id.id):
                rows = StaticTable.from_metadata(table.metadata_location).scan().to_arrow()
                state[f"s.{table.display_name}"] = rows["id"].to_pylist()
    return {"schema" for _ in schemas} | _statements(state, home)


def _statements(state: dict[str, list[int]], home: Path) -> set[str]:
    found = {f"connector {number}" for number in connectors_with_credentials(home)}
    found |= {f"table {name.removeprefix('s.t')}" for name in state if name != "s.t"}
    if "s.t" in state:
        found |= {"table"} | {f"row {number}" for number in state["s.t"]}
        assert len(state["s.t"]) == len(set(state["s.t"])), "a row is there twice"
    return found


def compare(found: set[str], certain: set[str], possible: set[str]) -> None:
    """Compare what was found with what was acknowledged and sent."""
    numbers = {what.partition(" ")[2] for what in certain if what.startswith("dropped ")}
    assert not {f"table {number}" for number in numbers} & found, "a dropped table is back"
    dropped = {f"table {what.partition(' ')[2]}" for what in possible if what.startswith("dropped ")}
    expected = {what for what in certain - dropped if not what.startswith("dropped ")}
    assert expected <= found, f"lost: {sorted(expected - found)}"
    assert found <= possible, f"never sent: {sorted(found - possible)}"


def connectors_with_credentials(home: Path) -> list[str]:
    """The numbers of all connectors, which must have their credentials; the stores must be without defects."""
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        assert integrity_errors(stores) == []
        realm, secrets = Realm(stores, DEFAULT_ACCOUNT), open_secrets((home / "secrets").as_uri())
        listed = connectors.list_(realm, v1.ListConnectorsRequest()).connectors
        for each in listed:
            found = credentials(realm, secrets, each)
            assert found is not None
            assert found.bearer.token == f"the token of {each.display_name}"
    return [each.display_name.removeprefix("connector ") for each in listed]
