"""How a pass goes over tables: side by side, telling how far it is, to where each belongs, with the columns chosen."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, refused
from metastore.upstreams import CORE, SECRETS, STATS, connector, mirrored, parquet, run
from skiway.errors import Cancelled, InvalidArgument, PreconditionFailed
from skiway.formats import open_source
from skiway.metastore import statistics
from skiway.metastore.jobs.queue import Progress, Stage
from skiway.metastore.reconcile.outcomes import LEFT_OUT, Control, unread
from skiway.metastore.reconcile.reconciler import MOST_LANES, Reconciler
from skiway.model import v1


@pytest.fixture
def four(tmp_path):
    for name in ("a", "b", "c", "d"):
        parquet(tmp_path / "up", name, id=[1], name=["x"])
    return tmp_path / "up"


class Reports(Control):
    """Takes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Progress] = []

    def report(self, done: Progress) -> None:
        self.told.append(done)


@dataclass
class Report:
    failed: Mapping[str, str] = field(default_factory=dict)


class Profiler:
    """Puts statistics as a real one does, of so many files; fails for those it is told."""

    def __init__(self, failed: Mapping[str, str] | None = None) -> None:
        self.failed = dict(failed or {})
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, realm, table_id, snapshot, *, handle, columns, on_progress, **_) -> Report:
        schema = handle.schema_at(snapshot)
        self.asked.append((handle.name.name, columns.of(schema).arrow.names))
        files = handle.files(snapshot).num_rows
        for done in range(files + 1):
            on_progress(done, files)
        stats = v1.TableStats(row_count=1, data_file_count=files)
        stats.properties["files.profiled"] = str(files - len(self.failed))
        if left_out := columns.left_out(schema):
            stats.properties[LEFT_OUT] = ",".join(map(str, left_out))
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))
        return Report(self.failed)


# --- side by side -----------------------------------------------------------------------------------------------------


class Slow:
    """Sources that say how many tables are being loaded at the same time, and wait for `meet` of them."""

    def __init__(self, meet: int) -> None:
        self.opened, self.most, self._now = 0, 0, 0
        self._lock, self._meeting = threading.Lock(), threading.Barrier(meet)

    def __call__(self, *asked: Any, **more: Any) -> Any:
        source = open_source(*asked, **more)
        self.opened += 1
        load = source.load

        def slowly(*name: Any) -> Any:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            self._meeting.wait(20)
            with self._lock:
                self._now -= 1
            return load(*name)

        source.load = slowly  # type: ignore[assignment, method-assign]
        return source


def passing(factory: ResourceFactory, made: v1.Connector, opener: Any, control: Control | None = None) -> Any:
    return Reconciler(SECRETS, opener=opener).run(factory.home, made.resource_id, mode=CORE, control=control)


@pytest.mark.parametrize(("max_parallel", "lanes"), [(0, 1), (1, 1), (2, 2), (4, 4), (100, 4)])
def test_so_many_tables_are_worked_on_at_once_as_the_policy_says(factory: ResourceFactory, four, max_parallel, lanes):
    made = connector(factory, str(four), policy=v1.ConnectorPolicy(max_parallel=max_parallel))
    slow = Slow(meet=lanes)
    outcome = passing(factory, made, slow)
    assert (outcome.scanned, outcome.changed, outcome.failures) == (4, 4, {})
    assert (slow.most, slow.opened) == (lanes, lanes)
    assert sorted(mirrored(factory)) == ["files.a", "files.b", "files.c", "files.d"]


def test_no_policy_asks_for_more_lanes_than_there_can_be(factory: ResourceFactory, tmp_path):
    for number in range(MOST_LANES + 4):
        parquet(tmp_path, f"t{number}", id=[1])
    made = connector(factory, str(tmp_path), policy=v1.ConnectorPolicy(max_parallel=1000))
    opened = Slow(meet=1)
    passing(factory, made, opened)
    assert opened.opened == MOST_LANES


def test_side_by_side_one_failing_table_does_not_stop_the_others(factory: ResourceFactory, four):
    (four / "b.parquet").write_bytes(b"PAR1nonsensePAR1")
    made = connector(factory, str(four), policy=v1.ConnectorPolicy(max_parallel=3))
    outcome = run(factory, made)
    assert (outcome.scanned, outcome.changed, list(outcome.failures)) == (4, 3, ["b"])
    assert sorted(mirrored(factory)) == ["files.a", "files.c", "files.d"]


def test_side_by_side_a_run_that_must_stop_begins_no_other_table(factory: ResourceFactory, four):
    class Stops(Control):
        stop = False

        def check(self) -> None:
            if self.stop:
                raise Cancelled("enough", key="job.cancelled")

        def report(self, done: Progress) -> None:
            self.stop = self.stop or done.stage.tables_done > 0

    made = connector(factory, str(four), policy=v1.ConnectorPolicy(max_parallel=2))
    with pytest.raises(Cancelled):
        run(factory, made, control=Stops())
    assert 1 <= len(mirrored(factory)) <= 2
    run(factory, made)
    assert len(mirrored(factory)) == 4


# --- how far it is ----------------------------------------------------------------------------------------------------


def test_a_pass_tells_how_far_it_is(factory: ResourceFactory, four):
    made, control = connector(factory, str(four)), Reports()
    run(factory, made, control=control)
    stages = [each.stage for each in control.told]
    assert stages[0] == Stage(CORE, tables_total=4)
    assert stages[1] == Stage(CORE, 4, 0, ("a",))
    assert stages[-1] == Stage(CORE, 4, 4)
    assert [each.tables_scanned for each in control.told] == sorted(each.tables_scanned for each in control.told)


def test_the_second_pass_tells_of_files_too(factory: ResourceFactory, tmp_path):
    for number in range(3):
        parquet(tmp_path / "up" / "t", f"f{number}", id=[number])
    made, control = connector(factory, str(tmp_path / "up")), Reports()
    run(factory, made)
    run(factory, made, STATS, Profiler(), control=control)
    files = [(each.stage.files_done, each.stage.files_total) for each in control.told]
    assert list(dict.fromkeys(files)) == [(0, 0), (0, 3), (1, 3), (2, 3), (3, 3)]
    assert control.told[-1].stage == Stage(STATS, 1, 1, (), 3, 3)


def test_failures_of_the_first_pass_are_still_told_in_the_second(factory: ResourceFactory, four):
    (four / "b.parquet").write_bytes(b"PAR1nonsensePAR1")
    made, control = connector(factory, str(four)), Reports()
    job = v1.Job(connector_id=made.resource_id, modes=[CORE, STATS])
    Reconciler(SECRETS, Profiler()).job(factory.home, job, control)
    second = [each for each in control.told if each.stage.mode == STATS]
    assert second
    assert all(list(each.failures) == ["b"] for each in second)
    assert control.told[-1].tables_scanned == 4


# --- where to ---------------------------------------------------------------------------------------------------------


def test_single_tables_go_to_destinations_of_their_own(factory: ResourceFactory, four):
    parquet(four / "deep" / "a", "x", id=[1])
    tables = [
        v1.TableDestination(source="a", table_display_name="alpha"),
        v1.TableDestination(source="deep.a", namespace=v1.NamespacePath(segments=["other", "place"])),
        v1.TableDestination(source="b", namespace=v1.NamespacePath(segments=["other"]), table_display_name="beta"),
    ]
    destination = v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id, tables=tables)
    made = connector(factory, str(four), destination=destination)
    assert run(factory, made).failures == {}
    assert sorted(mirrored(factory)) == ["files.alpha", "files.c", "files.d", "other.beta", "other.place.a"]
    assert run(factory, made).changed == 0


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([v1.TableDestination(table_display_name="x")], "destination.tables.source"),
        ([v1.TableDestination(source="a")], "set a name or a namespace for a"),
        ([v1.TableDestination(source="a", table_display_name=name) for name in "xy"], "a twice"),
    ],
)
def test_destinations_of_tables_that_say_nothing_or_too_much_are_refused(factory: ResourceFactory, tables, said):
    destination = v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id, tables=tables)
    with pytest.raises(InvalidArgument, match=said):
        connector(factory, "/data", destination=destination)


# --- which columns ----------------------------------------------------------------------------------------------------


def test_only_chosen_columns_are_profiled(factory: ResourceFactory, four):
    made = connector(factory, str(four), source=v1.ConnectorSource(table="a", exclude_columns=["name"]))
    run(factory, made)
    profiler = Profiler()
    run(factory, made, STATS, profiler)
    assert profiler.asked == [("a", ["id"])]


def test_columns_left_out_before_are_profiled_once_they_are_wanted(factory: ResourceFactory, four):
    made = connector(factory, str(four), source=v1.ConnectorSource(table="a"))
    run(factory, made)
    profiler = Profiler()
    run(factory, made, STATS, profiler, scope=v1.JobScope(columns=["id"]))
    run(factory, made, STATS, profiler, scope=v1.JobScope(columns=["id"]))
    run(factory, made, STATS, profiler)
    run(factory, made, STATS, profiler)
    run(factory, made, STATS, profiler, scope=v1.JobScope(columns=["name"]))
    assert profiler.asked == [("a", ["id"]), ("a", ["id", "name"])]


@pytest.mark.parametrize("column", ["", " ", "#", "#x"])
def test_a_malformed_excluded_column_is_refused(factory: ResourceFactory, column):
    with refused(InvalidArgument, "field.invalid", field="source.exclude_columns"):
        connector(factory, "/data", source=v1.ConnectorSource(exclude_columns=[column]))


# --- files that cannot be read ----------------------------------------------------------------------------------------


def test_files_that_could_not_be_profiled_are_told_and_tried_again(factory: ResourceFactory, four):
    made = connector(factory, str(four), source=v1.ConnectorSource(include_tables=["a", "b"]))
    run(factory, made)
    broken = Profiler({f"/f{number}": "it is broken" for number in range(1)})
    outcome = run(factory, made, STATS, broken)
    assert list(outcome.failures) == ["a", "b"]
    assert "1 files could not be profiled" in outcome.failures["a"]
    assert "/f0: it is broken" in outcome.failures["a"]
    mended = Profiler()
    assert run(factory, made, STATS, mended).failures == {}
    assert [name for name, _ in mended.asked] == ["a", "b"]
    assert run(factory, made, STATS, mended).changed == 0


def test_of_many_unreadable_files_some_are_told_and_all_counted():
    error = unread({f"/f{number}": "gone" for number in range(10)})
    assert isinstance(error, PreconditionFailed)
    assert (error.key, error.params["files"]) == ("profile.files.failed", "10")
    assert "and 7 more" in error.message
