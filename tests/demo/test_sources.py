"""The source systems of the demo are deterministic and complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from skiway.demo import dataset
from skiway.demo.build import SOURCES, written
from skiway.demo.dataset import RESORTS, Winter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    assert [each.source for each in written(folder)] == list(SOURCES)
    return folder


def test_generated_data_is_deterministic() -> None:
    once, again = Winter.generate(), Winter.generate()
    for make in (dataset.rides, dataset.tickets, dataset.weather):
        assert make(once).equals(make(again))
    assert dataset.trails().equals(dataset.trails())
    assert dataset.lifts().equals(dataset.lifts())


def test_generated_data_is_plausible() -> None:
    winter = Winter.generate()
    assert 0.05 < (winter.fresh_cm >= 15).mean() < 0.2
    assert winter.fresh_cm.max() <= 85
    assert set(dataset.rides(winter)["lift"].to_pylist()) == {lift for resort in RESORTS for lift in resort.lifts}
    assert len(dataset.trails()) == sum(len(resort.trails) for resort in RESORTS)


def test_rides_are_partitioned_and_gain_a_column(folder: Path) -> None:
    with SqlCatalog("operations", uri=f"sqlite:///{folder}/lift-operations/catalog.db") as catalog:
        rides = catalog.load_table("lifts.rides")
    assert [str(field.transform) for field in rides.spec().fields] == ["month"]
    first, *_, last = rides.snapshots()
    assert "wait_s" not in rides.scan(snapshot_id=first.snapshot_id).to_arrow().column_names
    assert rides.scan(snapshot_id=last.snapshot_id).to_arrow()["wait_s"].null_count > 0
    assert rides.snapshot_by_name("opening-month") == first


def test_tickets_are_refunded_for_one_day(folder: Path) -> None:
    path = f"{folder}/ticket-desk/sales/tickets"
    resort, day = Winter.generate().worst_day
    rows = DeltaTable(path).to_pyarrow_table()
    refunded = {(row["resort"], row["sold_on"]) for row in rows.filter(rows["refunded"]).to_pylist()}
    assert refunded == {(resort, day)}
    version = DeltaTable(path).version()
    assert not any(DeltaTable(path, version=version - 1).to_pyarrow_table()["refunded"].to_pylist())


def test_incomplete_source_is_rewritten(folder: Path, tmp_path: Path) -> None:
    incomplete = tmp_path / "lift-operations"
    incomplete.mkdir()
    (incomplete / "catalog.db").write_bytes(b"torn")
    assert len(list(written(tmp_path))) == len(SOURCES)
    with SqlCatalog("operations", uri=f"sqlite:///{incomplete}/catalog.db") as catalog:
        assert catalog.load_table("lifts.lifts").scan().to_arrow().num_rows == len(dataset.lifts())


def test_complete_source_is_not_rewritten(folder: Path) -> None:
    before = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
    list(written(folder))
    assert {each: each.stat().st_mtime_ns for each in folder.rglob("*")} == before
