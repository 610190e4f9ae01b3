"""A server notices that the store was migrated to a newer format than it can read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from runtime.servers import eventually
from skiway.errors import PreconditionFailed, Unavailable
from skiway.metastore.migrations import watching_format
from skiway.storage import ABSENT, FORMAT_VERSION, PointerStore, StoreFormat, Stores, open_blobs, open_pointers

CURRENT, NEWER = StoreFormat(FORMAT_VERSION), StoreFormat(FORMAT_VERSION + 1, complete=False)


@pytest.fixture
def pointers() -> Iterator[PointerStore]:
    with open_pointers("memory://") as opened:
        yield opened


def is_retired(pointers: PointerStore) -> bool:
    try:
        pointers.get("/a")
    except PreconditionFailed:
        return True
    return False


def test_store_with_a_newer_format_is_neither_read_nor_written(
    pointers: PointerStore, caplog: pytest.LogCaptureFixture
) -> None:
    with watching_format(Stores(pointers, open_blobs("memory://")), every_s=0.001):
        pointers.compare_and_set("/a", "b", expect=ABSENT)
        pointers.change_format(CURRENT, NEWER)
        eventually(lambda: is_retired(pointers))
        for call in (
            lambda: pointers.compare_and_set("/a", "c", expect=1),
            lambda: pointers.compare_and_delete("/a", expect=1),
            lambda: pointers.apply([]),
            lambda: pointers.page(),
            lambda: pointers.count(),
            lambda: pointers.purge_expired(),
            lambda: list(pointers.snapshot()),
        ):
            with pytest.raises(PreconditionFailed, match="upgrade and restart this server") as refused:
                call()
            assert refused.value.key == "store.format.newer"
    assert f"was migrated to format {FORMAT_VERSION + 1}, but this server reads up to {FORMAT_VERSION}" in caplog.text


def test_watch_continues_after_an_outage(pointers: PointerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[StoreFormat] = []

    def read() -> StoreFormat:
        if not answers:
            answers.append(NEWER)
            raise Unavailable("the database is down")
        return answers[0]

    monkeypatch.setattr(pointers, "_format", read)
    with watching_format(Stores(pointers, open_blobs("memory://")), every_s=0.001):
        eventually(lambda: is_retired(pointers))


def test_store_stays_open_while_the_format_is_known(pointers: PointerStore, caplog: pytest.LogCaptureFixture) -> None:
    pointers.change_format(CURRENT, StoreFormat(1))
    reads: list[int] = []
    inner = pointers._format

    def read() -> StoreFormat:
        reads.append(1)
        return inner()

    pointers._format = read  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR), watching_format(Stores(pointers, open_blobs("memory://")), every_s=0.001):
        eventually(lambda: len(reads) > 2)
        pointers.change_format(StoreFormat(1), CURRENT)
        seen = len(reads)
        eventually(lambda: len(reads) > seen + 2)
    assert not is_retired(pointers)
    assert caplog.text == ""
