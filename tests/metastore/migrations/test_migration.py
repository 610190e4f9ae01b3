"""Migrations: steps run in order, once, after an interruption and beside each other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from metastore.migrations import things
from metastore.migrations.things import DONE, fill, state
from skiway.errors import Conflict, PreconditionFailed
from skiway.metastore.migrations import STEPS, Step, migrate, pending_steps, require_usable
from skiway.security import MemorySecrets
from skiway.storage import FORMAT_VERSION, PointerStore, StoreFormat, Stores, open_blobs, open_pointers
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import POINTER_KINDS, pointer_home

SECRETS = MemorySecrets()


def run_all(pointers: PointerStore, **options: Any) -> list[int]:
    """Run the steps; return their versions."""
    stores = Stores(pointers, open_blobs("memory://"))
    return [step.to for step in migrate(stores, SECRETS, things.STEPS, **({"settle_s": 0} | options))]


@pytest.fixture(params=POINTER_KINDS)
def open_store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    server: Callable[[str], str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], PointerStore]]:
    """Opens a store of format 1, of each kind."""
    for backend in ("sql", "dynamodb"):
        monkeypatch.setattr(f"skiway.storage.pointers.{backend}.FORMAT_VERSION", things.NEW.version)
    home = pointer_home(request.param, tmp_path, server)
    opened = [home.pointers()]
    fill(opened[0])

    def open_again() -> PointerStore:
        if request.param != "memory":
            opened.append(home.pointers())
        return opened[-1]

    yield open_again
    for each in opened:
        each.close()


@pytest.fixture
def pointers() -> Iterator[PointerStore]:
    with open_pointers("memory://") as opened:
        fill(opened)
        yield opened


def test_steps_run_in_order_and_once(open_store: Callable[[], PointerStore]) -> None:
    assert run_all(open_store()) == [2, 3]
    assert state(open_store()) == DONE
    assert run_all(open_store()) == []
    assert state(open_store()) == DONE


def test_format_changes_only_from_the_expected_one(open_store: Callable[[], PointerStore]) -> None:
    first, second = open_store(), open_store()
    first.change_format(StoreFormat(1), StoreFormat(2, complete=False))
    for expected in (StoreFormat(1), StoreFormat(2), StoreFormat(1, complete=False)):
        with pytest.raises(Conflict, match="read it and retry"):
            second.change_format(expected, StoreFormat(3))
    assert second.format() == StoreFormat(2, complete=False)
    second.change_format(StoreFormat(2, complete=False), StoreFormat(2))
    assert first.format() == StoreFormat(2)


def test_many_migrations_at_once_do_the_work_once(open_store: Callable[[], PointerStore]) -> None:
    count = 6
    barrier = Barrier(count)
    handles = [open_store() for _ in range(count)]

    def run(pointers: PointerStore) -> list[int]:
        barrier.wait(200)
        return run_all(pointers)

    with ThreadPoolExecutor(count) as pool:
        ran = list(pool.map(run, handles))
    assert state(open_store()) == DONE
    assert set().union(*ran) == {2, 3}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_migration_continues_where_it_stopped(
    kind: str,
    tmp_path: Path,
    server: Callable[[str], str],  # noqa: F811
) -> None:
    homes = [pointer_home(kind, tmp_path, server) for _ in range(16)]
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run(
        [sys.executable, script, *(home.url for home in homes)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert all(each["done"] for each in outcomes)
    assert [each["killed"] for each in outcomes] == [True] * 15 + [False], "a whole migration makes 15 calls"
    assert len({each["between"] for each in outcomes}) == 11, "each write leaves another state"


def test_slow_migration_does_not_undo_what_another_did_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one runs completely at every point at which this one could be slow."""
    for name in ("change_format", "format", "compare_and_set"):
        with open_pointers("memory://") as slow:
            fill(slow)
            method = getattr(slow, name)

            def after_the_other(*arguments: Any, slow=slow, name=name, method=method, **more: Any) -> Any:
                result = method(*arguments, **more) if name == "format" else None
                monkeypatch.setattr(slow, name, method)
                run_all(slow)
                return result if name == "format" else method(*arguments, **more)

            monkeypatch.setattr(slow, name, after_the_other)
            assert run_all(slow) == ([2] if name == "compare_and_set" else []), "it completes only what it has begun"
            assert state(slow) == DONE, name


def test_old_servers_have_time_to_notice_before_content_changes(pointers: PointerStore) -> None:
    seen = []

    def sleep(seconds: float) -> None:
        seen.append((seconds, *state(pointers)))

    run_all(pointers, settle_s=7, sleep=sleep)
    assert seen == [
        (7, StoreFormat(2, complete=False), [("old", 1)] * things.THINGS),
        (7, StoreFormat(3, complete=False), [("mid", 2)] * things.THINGS),
    ]


def test_pending_steps_include_the_incomplete_one() -> None:
    def pending(version: int, *, complete: bool = True) -> list[int]:
        return [step.to for step in pending_steps(StoreFormat(version, complete), things.STEPS)]

    assert pending(1) == pending(2, complete=False) == [2, 3]
    assert pending(2) == pending(3, complete=False) == [3]
    assert pending(3) == pending(4) == []


def test_there_is_one_step_for_each_version() -> None:
    assert [step.to for step in STEPS] == list(range(2, FORMAT_VERSION + 1))


def nothing(*_: object) -> None:
    """A step that changes nothing."""


def test_servers_use_an_older_store_only_if_all_steps_are_online(
    pointers: PointerStore, caplog: pytest.LogCaptureFixture
) -> None:
    stores = Stores(pointers, open_blobs("memory://"))
    online, offline = (Step(2, "", nothing, online=online) for online in (True, False))
    require_usable(stores, [online])
    assert "the store has format 1, and this version of Skiway writes format 2: run `skiway migrate`" in caplog.text
    with pytest.raises(
        PreconditionFailed, match=r"has format 1, .* stop all servers, make a backup, and run"
    ) as refused:
        require_usable(stores, [offline])
    assert refused.value.key == "store.format.older"
    with pytest.raises(PreconditionFailed):
        require_usable(stores, [online, Step(3, "", nothing, online=False)])
    pointers.change_format(StoreFormat(1), StoreFormat(2, complete=False))
    with pytest.raises(PreconditionFailed, match="the migration of the store to format 2 is not complete"):
        require_usable(stores, [offline])
    caplog.clear()
    pointers.change_format(StoreFormat(2, complete=False), StoreFormat(2))
    require_usable(stores, [offline])
    assert caplog.text == ""
