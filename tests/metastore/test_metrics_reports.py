"""Metrics reports are stored in a bounded space, and count as use of their table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skiway.metastore import Realm
from skiway.metastore.usage import (
    MAX_BYTES,
    MAX_REPORTS,
    REPORTS_KEPT,
    MetricsReport,
    Usage,
    add_report,
    reports_of,
    usage_of,
)
from skiway.storage import Stores, open_stores
from storage.homes import Clock


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as found:
        yield found


def test_reports_are_returned_as_they_were_stored(stores: Stores) -> None:
    realm = Realm(stores, "a1")
    scan = MetricsReport("scan", "ada", 7, "", '{"type":"eq"}', ["id"], {"result-data-files": 3})
    commit = MetricsReport("commit", "bob", 8, "append", "", [], {"added-data-files": 1})
    for each in (scan, commit):
        add_report(realm, "t1", each)
    assert [each for _, each in reports_of(realm, "t1")] == [scan, commit]
    assert list(reports_of(realm, "t2")) == []
    assert list(reports_of(Realm(stores, "a2"), "t1")) == []


def test_only_the_newest_reports_are_kept(stores: Stores) -> None:
    clock = Clock()
    realm = Realm(stores, "a1", clock=clock)
    for number in range(MAX_REPORTS + 5):
        add_report(realm, "t1", MetricsReport("scan", snapshot_id=number), counts=False)
        clock.advance(1)
    assert [each.snapshot_id for _, each in reports_of(realm, "t1")] == list(range(5, MAX_REPORTS + 5))


def test_reports_expire() -> None:
    clock = Clock()
    with open_stores("memory://", clock=clock) as stores:
        realm = Realm(stores, "a1", clock=clock)
        add_report(realm, "t1", MetricsReport("scan"), counts=False)
        clock.advance(REPORTS_KEPT.total_seconds() - 1)
        assert list(reports_of(realm, "t1"))
        clock.advance(2)
        assert list(reports_of(realm, "t1")) == []


def test_large_reports_are_cut(stores: Stores) -> None:
    realm = Realm(stores, "a1")
    names = [f"column {number} {'x' * 200}" for number in range(1000)]
    add_report(realm, "t1", MetricsReport("scan", "ada", 1, "o" * 5000, "f" * 50_000, names, dict.fromkeys(names, 1)))
    size = sum(len(each.blob_uri) for each in stores.pointers.scan("/reports/"))
    assert size < 30_000
    ((_, found),) = reports_of(realm, "t1")
    assert len(found.columns) == len(found.metrics) == 100
    assert found.filter.endswith("…")


def test_scans_and_commits_count_as_use(stores: Stores) -> None:
    realm = Realm(stores, "a1")
    scan = MetricsReport("scan", "ada", columns=["id", "id"], metrics={"total-file-size-in-bytes": 100})
    add_report(realm, "t1", scan)
    add_report(realm, "t1", MetricsReport("commit", "bob"))
    add_report(realm, "t1", MetricsReport("commit", "eve"), counts=False)
    ((_, used),) = usage_of(realm, "t1")
    assert used == Usage(1, 1, 100, columns={"id": 1}, callers={"ada": 1, "bob": 1}, sources={})  # type: ignore[arg-type]


def test_reported_sizes_cannot_exceed_64_bits(stores: Stores) -> None:
    realm = Realm(stores, "a1")
    for size in (2**63 - 1, 2**63 - 1, -5):
        add_report(realm, "t1", MetricsReport("scan", "ada", metrics={"total-file-size-in-bytes": size}))
    ((_, used),) = usage_of(realm, "t1")
    assert used.bytes_read == MAX_BYTES
