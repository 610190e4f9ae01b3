"""How a pass runs: parallel tables, progress reports, destinations, and selected columns."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, expect_error
from metastore.upstreams import CORE, SECRETS, STATS, connector, mirrored, parquet, run
from skiway.errors import Cancelled, InvalidArgument, PreconditionFailed
from skiway.formats import open_source
from skiway.metastore import statistics
from skiway.metastore.jobs.attempts import Amounts, Progress
from skiway.metastore.reconcile.outcomes import LEFT_OUT, Control, unread
from skiway.metastore.reconcile.reconciler import MOST_LANES, Reconciler
from skiway.model import v1


@pytest.fixture
def four_tables(tmp_path):
    for name in ("a", "b", "c", "d"):
        parquet(tmp_path / "up", name, id=[1], name=["x"])
    return tmp_path / "up"


class RecordingControl(Control):
    """Records the reported progress."""

    def __init__(self) -> None:
        self.reported: list[Progress] = []

    def report(self, done: Progress) -> None:
        self.reported.append(done)


@dataclass
class Report:
    failed: Mapping[str, str] = field(default_factory=dict)
    other_formats: Mapping[str, int] = field(default_factory=dict)


class Profiler:
    """Writes statistics like a real profiler, and fails for the given files."""

    def __init__(self, failed: Mapping[str, str] | None = None, version: int = statistics.CURRENT_VERSION) -> None:
        self.failed, self.version = dict(failed or {}), version
        self.profiled: list[tuple[str, list[str]]] = []

    def __call__(self, realm, table_id, snapshot, *, handle, columns, on_progress, **_) -> Report:
        schema = handle.schema_at(snapshot)
        self.profiled.append((handle.name.name, columns.of(schema).arrow.names))
        files = handle.files(snapshot).num_rows
        for done in range(files + 1):
            on_progress(Amounts(done, done * 10, done * 100), Amounts(files, files * 10, files * 100))
        stats = v1.TableStats(row_count=1, data_file_count=files)
        stats.properties["files.profiled"] = str(files - len(self.failed))
        stats.properties[statistics.PROFILE_VERSION] = str(self.version)
        if left_out := columns.left_out(schema):
            stats.properties[LEFT_OUT] = ",".join(map(str, left_out))
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))
        return Report(self.failed)


# --- parallel tables --------------------------------------------------------------------------------------------------


class SlowSources:
    """Opens sources that count the tables loaded at the same time, and wait until there are `parallel` of them."""

    def __init__(self, parallel: int) -> None:
        self.opened, self.most, self._now = 0, 0, 0
        self._lock, self._meeting = threading.Lock(), threading.Barrier(parallel)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        source = open_source(*arguments, **more)
        self.opened += 1
        load = source.load

        def load_slowly(*name: Any) -> Any:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            self._meeting.wait(200)
            with self._lock:
                self._now -= 1
            return load(*name)

        source.load = load_slowly  # type: ignore[assignment, method-assign]
        return source


def run_pass(factory: ResourceFactory, created: v1.Connector, opener: Any, control: Control | None = None) -> Any:
    return Reconciler(SECRETS, opener=opener).run(factory.home, created.resource_id, mode=CORE, control=control)


@pytest.mark.parametrize(("max_parallel", "expected"), [(0, 1), (1, 1), (2, 2), (4, 4), (100, 4)])
def test_policy_sets_the_number_of_parallel_tables(factory: ResourceFactory, four_tables, max_parallel, expected):
    created = connector(factory, str(four_tables), policy=v1.ConnectorPolicy(max_parallel=max_parallel))
    slow = SlowSources(parallel=expected)
    outcome = run_pass(factory, created, slow)
    assert (outcome.scanned, outcome.changed, outcome.failures) == (4, 4, {})
    assert (slow.most, slow.opened) == (expected, expected)
    assert sorted(mirrored(factory)) == ["files.a", "files.b", "files.c", "files.d"]


def test_number_of_parallel_tables_is_limited(factory: ResourceFactory, tmp_path):
    for number in range(MOST_LANES + 4):
        parquet(tmp_path, f"t{number}", id=[1])
    created = connector(factory, str(tmp_path), policy=v1.ConnectorPolicy(max_parallel=1000))
    opened = SlowSources(parallel=1)
    run_pass(factory, created, opened)
    assert opened.opened == MOST_LANES


def test_failing_table_does_not_stop_the_others_in_parallel(factory: ResourceFactory, four_tables):
    (four_tables / "b.parquet").write_bytes(b"PAR1nonsensePAR1")
    created = connector(factory, str(four_tables), policy=v1.ConnectorPolicy(max_parallel=3))
    outcome = run(factory, created)
    assert (outcome.scanned, outcome.changed, list(outcome.failures)) == (4, 3, ["b"])
    problems = {name: table.upstream.problem for name, table in mirrored(factory).items()}
    assert problems == {"files.a": "", "files.b": outcome.failures["b"], "files.c": "", "files.d": ""}


def test_stopped_parallel_run_starts_no_more_tables(factory: ResourceFactory, four_tables):
    class Stops(Control):
        stop = False

        def check(self) -> None:
            if self.stop:
                raise Cancelled("enough", key="job.cancelled")

        def report(self, done: Progress) -> None:
            self.stop = self.stop or done.stage.tables_done > 0

    created = connector(factory, str(four_tables), policy=v1.ConnectorPolicy(max_parallel=2))
    with pytest.raises(Cancelled):
        run(factory, created, control=Stops())
    assert 1 <= len(mirrored(factory)) <= 2
    run(factory, created)
    assert len(mirrored(factory)) == 4


# --- progress ---------------------------------------------------------------------------------------------------------


def test_pass_reports_its_progress(factory: ResourceFactory, four_tables):
    created, control = connector(factory, str(four_tables)), RecordingControl()
    run(factory, created, control=control)
    stages = [each.stage for each in control.reported]
    assert stages[0] == v1.JobProgress(**{"pass": CORE}, tables_total=4)
    assert stages[1] == v1.JobProgress(**{"pass": CORE}, tables_total=4, tables=["a"])
    assert stages[-1] == v1.JobProgress(**{"pass": CORE}, tables_total=4, tables_done=4)
    assert [each.tables_scanned for each in control.reported] == sorted(
        each.tables_scanned for each in control.reported
    )


def test_statistics_pass_also_reports_files(factory: ResourceFactory, tmp_path):
    for number in range(3):
        parquet(tmp_path / "up" / "t", f"f{number}", id=[number])
    created, control = connector(factory, str(tmp_path / "up")), RecordingControl()
    run(factory, created)
    run(factory, created, STATS, Profiler(), control=control)
    files = [(each.stage.files_done, each.stage.files_total) for each in control.reported]
    assert list(dict.fromkeys(files)) == [(0, 0), (0, 3), (1, 3), (2, 3), (3, 3)]
    assert control.reported[-1].stage == v1.JobProgress(
        **{"pass": STATS},
        **dict.fromkeys(("tables_total", "tables_done"), 1),
        **dict.fromkeys(("files_total", "files_done"), 3),
        **dict.fromkeys(("rows_total", "rows_done"), 30),
        **dict.fromkeys(("bytes_total", "bytes_done"), 300),
    )


def test_failures_of_the_metadata_pass_are_still_reported_in_the_statistics_pass(factory: ResourceFactory, four_tables):
    (four_tables / "b.parquet").write_bytes(b"PAR1nonsensePAR1")
    created, control = connector(factory, str(four_tables)), RecordingControl()
    job = v1.Job(connector_id=created.resource_id, modes=[CORE, STATS])
    Reconciler(SECRETS, Profiler()).job(factory.home, job, control)
    second = [each for each in control.reported if getattr(each.stage, "pass") == STATS]
    assert second
    assert all(list(each.failures) == ["b"] for each in second)
    assert control.reported[-1].tables_scanned == 4


# --- destinations -----------------------------------------------------------------------------------------------------


def test_single_tables_can_have_their_own_destinations(factory: ResourceFactory, four_tables):
    parquet(four_tables / "deep" / "a", "x", id=[1])
    tables = [
        v1.TableDestination(source="a", table_display_name="alpha"),
        v1.TableDestination(source="deep.a", namespace=v1.NamespacePath(segments=["other", "place"])),
        v1.TableDestination(source="b", namespace=v1.NamespacePath(segments=["other"]), table_display_name="beta"),
    ]
    destination = v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id, tables=tables)
    created = connector(factory, str(four_tables), destination=destination)
    assert run(factory, created).failures == {}
    assert sorted(mirrored(factory)) == ["files.alpha", "files.c", "files.d", "other.beta", "other.place.a"]
    assert run(factory, created).changed == 0


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([v1.TableDestination(table_display_name="x")], "destination.tables.source"),
        ([v1.TableDestination(source="a")], "set a name or a namespace for a"),
        ([v1.TableDestination(source="a", table_display_name=name) for name in "xy"], "a twice"),
    ],
)
def test_incomplete_or_ambiguous_table_destinations_are_rejected(factory: ResourceFactory, tables, message):
    destination = v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id, tables=tables)
    with pytest.raises(InvalidArgument, match=message):
        connector(factory, "/data", destination=destination)


# --- selected columns -------------------------------------------------------------------------------------------------


def test_only_selected_columns_are_profiled(factory: ResourceFactory, four_tables):
    created = connector(factory, str(four_tables), source=v1.ConnectorSource(table="a", exclude_columns=["name"]))
    run(factory, created)
    profiler = Profiler()
    run(factory, created, STATS, profiler)
    assert profiler.profiled == [("a", ["id"])]


def test_excluded_columns_are_profiled_once_they_are_selected(factory: ResourceFactory, four_tables):
    created = connector(factory, str(four_tables), source=v1.ConnectorSource(table="a"))
    run(factory, created)
    profiler = Profiler()
    run(factory, created, STATS, profiler, scope=v1.JobScope(columns=["id"]))
    run(factory, created, STATS, profiler, scope=v1.JobScope(columns=["id"]))
    run(factory, created, STATS, profiler)
    run(factory, created, STATS, profiler)
    run(factory, created, STATS, profiler, scope=v1.JobScope(columns=["name"]))
    assert profiler.profiled == [("a", ["id"]), ("a", ["id", "name"])]


def test_statistics_of_an_older_version_are_profiled_again(factory: ResourceFactory, four_tables):
    created = connector(factory, str(four_tables), source=v1.ConnectorSource(table="a"))
    run(factory, created)
    run(factory, created, STATS, Profiler(version=statistics.CURRENT_VERSION - 1))
    profiler = Profiler()
    assert [run(factory, created, STATS, profiler).changed for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("column", ["", " ", "#", "#x"])
def test_malformed_excluded_column_is_rejected(factory: ResourceFactory, column):
    with expect_error(InvalidArgument, "field.invalid", field="source.exclude_columns"):
        connector(factory, "/data", source=v1.ConnectorSource(exclude_columns=[column]))


# --- unreadable files -------------------------------------------------------------------------------------------------


def test_unprofiled_files_are_reported_and_retried(factory: ResourceFactory, four_tables):
    created = connector(factory, str(four_tables), source=v1.ConnectorSource(include_tables=["a", "b"]))
    run(factory, created)
    broken = Profiler({f"/f{number}": "it is broken" for number in range(1)})
    outcome = run(factory, created, STATS, broken)
    assert list(outcome.failures) == ["a", "b"]
    assert "1 files could not be profiled" in outcome.failures["a"]
    assert "/f0: it is broken" in outcome.failures["a"]
    mended = Profiler()
    assert run(factory, created, STATS, mended).failures == {}
    assert [name for name, _ in mended.profiled] == ["a", "b"]
    assert run(factory, created, STATS, mended).changed == 0


def test_all_unreadable_files_are_counted_and_some_are_listed():
    error = unread({f"/f{number}": "gone" for number in range(10)})
    assert isinstance(error, PreconditionFailed)
    assert (error.key, error.params["files"]) == ("profile.files.failed", "10")
    assert "and 7 more" in error.message
