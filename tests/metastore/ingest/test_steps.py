"""Loads in steps: what is committed or staged when a load stops, and where the next one continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.ingest.copies import FolderCopy, Here
from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import DuckQueries
from metastore.resource_factory import expect_error
from metastore.upstreams import SECRETS, connector, iceberg, mirrored
from skiway.errors import Cancelled, InvalidArgument
from skiway.metastore import connectors, jobs
from skiway.metastore.connectors.specs import CopyMode
from skiway.metastore.ingest.copying import STEP_BYTES
from skiway.metastore.ingest.file_tables import FileChanges
from skiway.metastore.ingest.rows import Target
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.pipelines.models.loads import LoadExpectations
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1


def write(orders: FolderCopy, *names: str) -> None:
    """A file with two rows for each name."""
    for name in names:
        pq.write_table(pa.table({"id": [int(name), 100], "v": [name] * 2}), orders.folder / f"{name}.parquet")


def ids(orders: FolderCopy) -> list[int]:
    return [row[0] for row in orders.rows() if row[0] != 100]


class Stopping:
    """Stops a load before it reads file number `at`, and records the files that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.at, self.read = at, []
        usual = FileChanges.write

        def recorded(changes: FileChanges, target: Target, keys: pa.Schema) -> Any:
            if len(self.read) == self.at:
                raise Cancelled("stopped", key="job.cancelled")
            self.read += [Path(path).stem for path in changes.added["path"].to_pylist()]
            return usual(changes, target, keys)

        monkeypatch.setattr(FileChanges, "write", recorded)


@pytest.fixture
def stepped(orders: FolderCopy) -> FolderCopy:
    """The copy of a folder, in steps of one file."""
    orders.more = {"step_bytes": 1}
    return orders


@pytest.mark.parametrize(("mode", "keys"), [(CopyMode.APPEND, ()), (CopyMode.UPSERT, ("id",))])
def test_stopped_load_has_committed_its_steps_and_continues(stepped, monkeypatch, mode, keys):
    stepped.in_mode(mode, *keys)
    write(stepped, "1", "2", "3", "4")
    stopping = Stopping(monkeypatch, 2)
    with expect_error(Cancelled, "job.cancelled"):
        stepped.load()
    assert ids(stepped) == [1, 2]
    write(stepped, "0")  # it comes first, but was not there before
    stopping.at = 99
    assert stepped.load()
    assert stopping.read == ["1", "2", "0", "3", "4"]
    assert ids(stepped) == [0, 1, 2, 3, 4]
    assert stepped.rows()[-1] == (4, "4")
    if keys:
        assert [row for row in stepped.rows() if row[0] == 100] == [(100, "4")]
    assert not stepped.load()
    assert len(list(stepped.table().metadata.snapshots)) == 5


def test_stopped_load_of_a_table_continues_with_its_snapshot_and_then_the_next(stepped, tmp_path, monkeypatch):
    source = iceberg(tmp_path / "ice")
    made = source.create_table("sales.orders", schema=pa.schema({"id": pa.int64(), "v": pa.string()}))
    for number in range(4):
        made.append(pa.table({"id": [number], "v": ["old"]}))
    stepped.kind = "iceberg"
    stepped.options = {"uri": f"sqlite:///{tmp_path}/ice/catalog.db", "namespace": "sales"}
    stepped.options["warehouse"] = f"file://{tmp_path}/ice/warehouse"
    stepped.in_mode(CopyMode.UPSERT, "id")
    stopping = Stopping(monkeypatch, 2)
    with expect_error(Cancelled, "job.cancelled"):
        stepped.load()
    assert len(stepped.rows()) == 2
    made.delete("id = 0 or id = 3")
    made.append(pa.table({"id": [3, 9], "v": ["new", "new"]}))
    stopping.at = 99
    assert stepped.load()
    assert len(stopping.read) == len(set(stopping.read)) == 5
    assert stepped.rows() == [(1, "old"), (2, "old"), (3, "new"), (9, "new")]
    assert not stepped.load()


@pytest.mark.parametrize("again", [False, True], ids=["replace", "full load"])
def test_stopped_replacement_shows_nothing_and_reads_only_the_rest_later(stepped, monkeypatch, again):
    stepped.in_mode(CopyMode.APPEND if again else CopyMode.REPLACE)
    write(stepped, "7")
    stepped.load()
    write(stepped, "1", "2", "3")
    stopping = Stopping(monkeypatch, 2)
    with expect_error(Cancelled, "job.cancelled"):
        stepped.load(again=again)
    assert ids(stepped) == [7]
    stopping.at = 99
    assert stepped.load(again=again)
    assert stopping.read == ["1", "2", "3", "7"]
    assert ids(stepped) == [1, 2, 3, 7]
    assert not [name for name in metadata_files(stepped) if name.startswith(("ingest-step", "staged"))]


def metadata_files(orders: FolderCopy) -> list[str]:
    return [file.name for file in Path(orders.table().metadata.location.removeprefix("file://"), "metadata").iterdir()]


def test_staged_steps_of_another_state_of_the_source_are_not_used(stepped, monkeypatch):
    stepped.in_mode(CopyMode.REPLACE)
    write(stepped, "1", "2", "3")
    stopping = Stopping(monkeypatch, 2)
    with expect_error(Cancelled, "job.cancelled"):
        stepped.load()
    pq.write_table(pa.table({"id": [11], "v": ["changed"]}), stepped.folder / "1.parquet")
    stopping.at = 99
    stepped.load()
    assert ids(stepped) == [11, 2, 3]


def test_progress_has_files_rows_and_bytes(stepped):
    write(stepped, "1", "2")
    reported: list[tuple[Amounts, Amounts]] = []
    stepped.load(on_progress=lambda *both: reported.append(both))
    total = reported[0][1]
    assert (total.files, total.bytes) == (2, sum(file.stat().st_size for file in stepped.folder.iterdir()))
    assert [done.files for done, _ in reported] == [0, 1, 2]
    assert reported[-1] == (total, total)


def test_later_steps_of_merges_are_larger(stepped):
    """Each step compares its keys with the table, so the cost of many small ones would grow with their square."""
    stepped.in_mode(CopyMode.UPSERT, "id")
    write(stepped, *map(str, range(64)))
    changes = stepped.source().changes(stepped.rules, None)
    assert changes is not None
    sizes = [step.amounts.files for step in changes.steps(1, growing=True)]
    assert sum(sizes) == 64
    assert sizes[:-1] == sorted(sizes[:-1])
    assert len(sizes) < 25


def test_plan_says_what_a_load_would_do_and_changes_nothing(stepped):
    write(stepped, "1", "2")
    copy, sizes = stepped.copy, sum(file.stat().st_size for file in stepped.folder.iterdir())
    assert copy.plan(stepped.source()).startswith("create the table, and append 2 files, ")
    assert f"{sizes:,} bytes in 2 steps" in copy.plan(stepped.source())
    stepped.load()
    assert copy.plan(stepped.source()) == "nothing new"
    assert "replace all rows by 2 files" in copy.plan(stepped.source(), again=True)
    assert ", published together" in copy.plan(stepped.source(), again=True)
    assert isinstance(stepped.distribute, Here)


class Engine:
    """Copies in this process."""

    distribute = Here()
    step_bytes = STEP_BYTES

    def expectations(self, *about: Any) -> LoadExpectations:
        return LoadExpectations.of(DuckQueries(), *about)

    def database(self, *_: object, **__: object) -> Any:
        raise AssertionError("there is no database")


def sync(lake: ManagedTableFactory, **how: Any) -> Outcome:
    """Run a job of the only connector, as a worker does."""
    (made,) = connectors.list_(lake.home, v1.ListConnectorsRequest()).connectors
    request = v1.TriggerReconcileRequest(connector_id=made.resource_id, **how)
    job_id = connectors.trigger(lake.home, request).job_id
    job = jobs.get(lake.home, v1.GetReconcileJobRequest(job_id=job_id)).job
    assert job.dry_run == how.get("dry_run", False)
    assert connectors.trigger(lake.home, request).job_id == job_id
    reconciler = Reconciler(SECRETS, warehouse=lake.warehouse, copies=Engine())
    return reconciler.job(lake.home, job, Control())


def test_dry_run_notes_what_a_job_would_load_and_creates_nothing(lake, tmp_path):
    lake.factory.catalog()
    for table in ("a", "b"):
        (tmp_path / "source" / table).mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "source" / table / "0.parquet")
    connector(lake.factory, str(tmp_path / "source"), v1.CK_PARQUET, copy=v1.CopySettings(mode=v1.COM_APPEND))
    outcome = sync(lake, dry_run=True)
    assert (outcome.failures, outcome.scanned, outcome.changed) == ({}, 2, 0)
    assert outcome.message.startswith("a: create the table, and append 1 files, ")
    assert "; b: create the table" in outcome.message
    assert mirrored(lake.factory) == {}
    assert sync(lake).changed == 2
    assert sync(lake, dry_run=True).message == "a: nothing new; b: nothing new"


def test_dry_run_of_a_connector_that_mirrors_is_an_error(lake, tmp_path):
    lake.factory.catalog()
    connector(lake.factory, str(tmp_path), v1.CK_PARQUET)
    with expect_error(InvalidArgument, "ingest.dry_run"):
        sync(lake, dry_run=True)
