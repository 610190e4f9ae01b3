"""Copies of changes from a real PostgreSQL, whose keys are joined in this process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import (
    Cancelled,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
)
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.spark_jobs.ingest import log_changes, postgres_log, replication_slots
from skiway.storage import open_stores, utc_now
from spark_jobs.ingest_sources import USER, Postgres, running_postgres_on_tcp
from spark_jobs.log_copies import LogCopy, running_postgres_with_a_log

_NAMES = (f"log{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres_with_a_log() as running:
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ManagedTableFactory]:
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        yield ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def copy(postgres: Postgres, lake: ManagedTableFactory) -> Iterator[LogCopy]:
    """The copy of a table with a key and two texts, one of them large, so that PostgreSQL stores it apart."""
    schema = postgres.new_schema(next(_NAMES))
    made = LogCopy(lake, postgres, schema)
    made.run(
        "CREATE TABLE $t (id int PRIMARY KEY, v text, large text)",
        "ALTER TABLE $t ALTER large SET STORAGE EXTERNAL",
        f"ALTER TABLE $t OWNER TO {USER}",
    )
    yield made
    postgres.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    postgres.run(f"DROP SCHEMA {schema} CASCADE")


LARGE = "repeat(md5('x'), 200)"


def test_copy_follows_inserts_updates_deletes_changed_keys_and_truncation(copy: LogCopy) -> None:
    copy.run(
        f"INSERT INTO $t SELECT n, 'v' || n, {LARGE} || n FROM generate_series(1, 5) n",
        "INSERT INTO $t VALUES (6, '', NULL)",
    )
    assert copy.load()
    assert copy.rows() == copy.source_rows()
    assert not copy.load()
    copy.run(
        "UPDATE $t SET v = 'changed' WHERE id = 1",  # its large value is not sent
        "UPDATE $t SET id = 20, v = NULL WHERE id = 2",
        "DELETE FROM $t WHERE id IN (3, 6)",
        "INSERT INTO $t VALUES (3, 'again', 'small'), (30, 'gone soon', NULL)",
        "DELETE FROM $t WHERE id = 30",
        "UPDATE $t SET id = id + 100 WHERE id = 4",
        "UPDATE $t SET v = 'twice' WHERE id = 104",
    )
    assert copy.load()
    assert copy.rows() == copy.source_rows()
    copy.run("INSERT INTO $t VALUES (500, 'gone', NULL)", "DELETE FROM $t WHERE id IN (1, 500)")
    assert copy.load()
    assert copy.rows() == copy.source_rows()
    copy.run("INSERT INTO $t VALUES (7, 'before', NULL)", "TRUNCATE $t", "INSERT INTO $t VALUES (8, 'after', NULL)")
    assert copy.load()
    assert copy.rows() == copy.source_rows() == [(8, "after", None)]
    copy.run("TRUNCATE $t")
    assert copy.load()
    assert copy.rows() == []


def test_append_keeps_the_history(copy: LogCopy) -> None:
    copy.rules = CopyRules(CopyMode.APPEND)
    copy.run(f"INSERT INTO $t VALUES (1, 'a', {LARGE})")
    copy.load()
    copy.run("UPDATE $t SET v = 'b'", "BEGIN; UPDATE $t SET id = 2; DELETE FROM $t; COMMIT", "TRUNCATE $t")
    assert copy.load()
    assert not copy.load()
    found = sorted(copy.rows("skiway_lsn", "skiway_order", "skiway_operation", "id", "v", "skiway_unchanged"))
    assert [row[1:] for row in found] == [
        (0, "snapshot", 1, "a", None),
        (0, "update", 1, "b", "large"),
        (0, "update", 2, "b", "large"),
        (1, "delete", 2, None, None),
        (0, "truncate", None, None, None),
    ]
    assert found[2][0] == found[3][0], "one transaction"


def test_rows_of_transactions_that_run_during_the_snapshot_are_there_once(copy: LogCopy, monkeypatch: Any) -> None:
    """One transaction began before the snapshot and ends after it; another one begins and ends while the rows are read."""
    copy.rules = CopyRules(CopyMode.APPEND)
    copy.run("INSERT INTO $t VALUES (1, 'early', NULL)")
    table, usual = f"{copy.schema}.t", log_changes.read_copy
    with psycopg.connect(copy.postgres.socket_url) as late:

        def interleaved(blocks: Any, columns: Any) -> Any:
            yield from usual(blocks, columns)
            late.commit()
            copy.run("INSERT INTO $t VALUES (3, 'during', NULL)")

        real_begin = replication_slots.Slot.begin

        def begin(slot: Any) -> int:
            found = real_begin(slot)
            late.execute(f"INSERT INTO {table} VALUES (2, 'late', NULL)")  # type: ignore[arg-type]
            copy.run("INSERT INTO $t VALUES (4, 'between slot and snapshot', NULL)")
            return found

        monkeypatch.setattr(log_changes, "read_copy", interleaved)
        monkeypatch.setattr(replication_slots.Slot, "begin", begin)
        copy.load()
    assert sorted(copy.rows("id", "skiway_operation")) == [
        (1, "snapshot"),
        (2, "insert"),
        (3, "insert"),
        (4, "snapshot"),
    ]


class Killed(BaseException):
    """The worker is gone."""


def test_kill_between_commit_and_the_slot_loads_nothing_twice(copy: LogCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.rules = CopyRules(CopyMode.APPEND)
    copy.step_changes = 1
    copy.run("INSERT INTO $t VALUES (0, 'first', NULL)")
    copy.load()
    copy.run(*(f"INSERT INTO $t VALUES ({n}, 'v', NULL)" for n in range(1, 5)))
    usual = replication_slots.Slot.forget
    calls = itertools.count()

    def dies(slot: Any, position: Any) -> None:
        if next(calls) % 2:
            raise Killed
        usual(slot, position)

    monkeypatch.setattr(replication_slots.Slot, "forget", dies)
    for _ in range(4):
        with pytest.raises(Killed):
            copy.load()
    monkeypatch.undo()
    copy.load()
    assert sorted(copy.rows("id", "skiway_operation")) == [(0, "snapshot"), *((n, "insert") for n in range(1, 5))]


def test_load_that_is_stopped_in_the_first_snapshot_begins_again(copy: LogCopy) -> None:
    copy.run("INSERT INTO $t VALUES (1, 'a', NULL)")
    calls = itertools.count()

    def stop() -> None:
        if next(calls) == 1:
            raise Cancelled("stopped", key="job.cancelled")

    copy.check = stop
    with expect_error(Cancelled, "job.cancelled"):
        copy.load()
    copy.run("INSERT INTO $t VALUES (2, 'b', NULL)", "DELETE FROM $t WHERE id = 1")
    assert copy.load()
    assert copy.rows("id") == [(2,)]


def test_random_changes_of_the_source_and_kills_end_with_equal_rows(
    copy: LogCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(38)
    usual = replication_slots.Slot.forget

    def perhaps(slot: Any, position: Any) -> None:
        if rng.random() < 0.3:
            raise Killed
        usual(slot, position)

    monkeypatch.setattr(replication_slots.Slot, "forget", perhaps)
    for _ in range(12):
        copy.step_changes = rng.choice([1, 3, 1000])
        for _ in range(rng.randrange(6)):
            key = rng.randrange(8)
            copy.run(
                rng.choice(
                    [
                        f"INSERT INTO $t VALUES ({key}, '{rng.random()}', {LARGE}) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                        f"UPDATE $t SET v = '{rng.random()}' WHERE id >= {key}",
                        f"UPDATE $t SET id = {key} + 10 WHERE id = {key} AND NOT EXISTS (SELECT FROM $t WHERE id = {key} + 10)",
                        f"DELETE FROM $t WHERE id % 5 = {key}",
                        "UPDATE $t SET large = v WHERE id < 3",
                        *(["TRUNCATE $t"] if rng.random() < 0.1 else []),
                    ]
                )
            )
        try:
            copy.load()
        except Killed:
            continue
    monkeypatch.undo()
    copy.load()
    assert copy.rows() == copy.source_rows()


def test_columns_of_the_source_may_change(copy: LogCopy) -> None:
    copy.run("INSERT INTO $t VALUES (1, 'a', NULL)")
    copy.load()
    copy.run(
        "INSERT INTO $t VALUES (2, 'b', NULL)",
        "ALTER TABLE $t ADD COLUMN more int",
        "INSERT INTO $t VALUES (3, 'c', NULL, 7)",
        "ALTER TABLE $t ALTER more TYPE bigint",
        "ALTER TABLE $t DROP COLUMN large",
        "UPDATE $t SET more = 5000000000 WHERE id = 1",
    )
    assert copy.load()
    assert copy.rows("id", "v", "more") == [(1, "a", 5000000000), (2, "b", None), (3, "c", 7)]
    copy.run("ALTER TABLE $t ALTER v TYPE int USING 1", "INSERT INTO $t VALUES (4, 1, 1)")
    with expect_error(PreconditionFailed, "ingest.schema.incompatible"):
        copy.load()


TYPES = {
    "smallint": ("1", 1),
    "bigint": ("-5000000000", -5000000000),
    "real": ("1.5", 1.5),
    "double precision": ("'Infinity'", float("inf")),
    "numeric(9, 2)": ("12.30", Decimal("12.30")),
    "numeric": ("1.5", Decimal("1.500000000000000000")),
    "boolean": ("false", False),
    "text": ("E'a,\"b\"\\n'", 'a,"b"\n'),
    "uuid": ("'8c7d1e0e-0000-4000-8000-000000000001'", "8c7d1e0e-0000-4000-8000-000000000001"),
    "jsonb": ("'{\"a\": 1}'", '{"a": 1}'),
    "date": ("'2026-01-31'", date(2026, 1, 31)),
    "timestamp": ("'2026-01-31 08:09:10.5'", datetime(2026, 1, 31, 8, 9, 10, 500000)),
    "timestamptz": ("'2026-01-31 08:00:00+02'", datetime(2026, 1, 31, 6, tzinfo=UTC)),
    "time": ("'24:00:00'", "24:00:00"),
    "bytea": ("'\\x00ff'", b"\x00\xff"),
    "int[]": ("'{1,NULL}'", "{1,NULL}"),
}


def test_values_of_all_types_are_the_same_in_snapshots_and_changes(copy: LogCopy) -> None:
    columns = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    copy.run(
        "DROP TABLE $t",
        f"CREATE TABLE $t (id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in columns.items())})",
        f"ALTER TABLE $t OWNER TO {USER}",
    )
    values = ", ".join(text for text, _ in TYPES.values())
    copy.run(f"INSERT INTO $t VALUES (1, {values})", "INSERT INTO $t (id, c10) VALUES (2, 'infinity')")
    copy.load()
    copy.run(f"INSERT INTO $t VALUES (3, {values})", "INSERT INTO $t (id, c10) VALUES (4, 'infinity')")
    copy.load()
    expected = tuple(value for _, value in TYPES.values())
    nothing = (None,) * len(TYPES)
    assert copy.rows() == [(1, *expected), (2, *nothing), (3, *expected), (4, *nothing)]


def test_slot_keeps_no_log_that_is_not_needed(copy: LogCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only other tables change."""
    monkeypatch.setattr(postgres_log, "IDLE_BYTES", 1 << 20)
    copy.load()
    other = f"{copy.schema}.other"
    copy.run(f"CREATE TABLE {other} AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
    assert copy.slot()[1] > 1 << 20
    copy.load()  # commits the position
    copy.load()  # and then forgets
    assert copy.slot()[1] < 1 << 20
    assert copy.rows() == []


def test_lost_changes_are_an_error_until_a_full_load(copy: LogCopy) -> None:
    copy.run("INSERT INTO $t VALUES (1, 'a', NULL)")
    copy.load()
    copy.run("DELETE FROM $t", "INSERT INTO $t VALUES (2, 'b', NULL)")
    name = copy.slot()[0]
    copy.postgres.run(f"SELECT pg_drop_replication_slot('{name}')")
    with expect_error(PreconditionFailed, "ingest.log.lost") as raised:
        copy.load()
    assert f"because its slot {name} was dropped: load the table again in full" in raised.value.message
    assert copy.load(again=True)
    assert copy.rows("id") == [(2,)]
    copy.run("INSERT INTO $t VALUES (3, 'c', NULL)")
    copy.postgres.run(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
    with expect_error(PreconditionFailed, "ingest.log.lost") as raised:
        copy.load()
    assert "somebody else has read the slot" in raised.value.message
    assert copy.load(again=True)
    assert copy.rows("id") == [(2,), (3,)]
    copy.postgres.run(f"DROP PUBLICATION {name}")
    copy.run("INSERT INTO $t VALUES (4, 'd', NULL)")
    with expect_error(PreconditionFailed, "ingest.log.publication"):
        copy.load()
    assert copy.load(again=True)
    copy.run("INSERT INTO $t VALUES (5, 'e', NULL)")
    assert copy.load()
    assert copy.rows("id") == [(2,), (3,), (4,), (5,)]


def test_slot_that_fell_behind_is_an_error_until_a_full_load(copy: LogCopy) -> None:
    copy.run("INSERT INTO $t VALUES (1, 'a', NULL)")
    copy.load()
    copy.postgres.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        copy.run("INSERT INTO $t VALUES (2, 'b', NULL)")
        for _ in range(4):
            copy.postgres.run(
                "SELECT pg_switch_wal()", "CREATE TABLE filler AS SELECT 1", "DROP TABLE filler", "CHECKPOINT"
            )
        with expect_error(PreconditionFailed, "ingest.log.lost") as raised:
            copy.load()
        assert "its slot fell behind" in raised.value.message
        assert copy.load(again=True)
        assert copy.rows("id") == [(1,), (2,)]
    finally:
        copy.postgres.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_table_without_a_key_needs_one_and_a_wrong_key_is_found(copy: LogCopy) -> None:
    copy.run("ALTER TABLE $t DROP CONSTRAINT t_pkey")
    with expect_error(PreconditionFailed, "ingest.key.missing"):
        copy.load()
    copy.rules = CopyRules(CopyMode.UPSERT, ("id",))
    copy.run("ALTER TABLE $t REPLICA IDENTITY FULL", f"INSERT INTO $t VALUES (1, 'a', {LARGE}), (2, 'a', NULL)")
    copy.load()
    copy.run("UPDATE $t SET v = 'b' WHERE id = 1", "DELETE FROM $t WHERE id = 2")
    copy.load()
    assert copy.rows() == copy.source_rows()


def test_expectations_judge_changes(copy: LogCopy) -> None:
    copy.rules = CopyRules(CopyMode.UPSERT, expect="[{not_null: v, on_failure: drop}, {unique: large}]")
    copy.run("INSERT INTO $t VALUES (1, 'a', 'x'), (2, NULL, 'y')")
    copy.load()
    assert copy.rows("id") == [(1,)]
    copy.run("DELETE FROM $t WHERE id = 1", "INSERT INTO $t VALUES (3, 'c', 'x')")
    copy.load()
    assert copy.rows("id") == [(3,)]


def test_wrong_passwords_rights_and_tables_are_told(copy: LogCopy) -> None:
    copy.password = "wrong"
    with expect_error(Unauthorized, "ingest.database.login"):
        copy.load()
    copy.password = LogCopy.password
    copy.run("ALTER TABLE $t OWNER TO CURRENT_USER")
    with expect_error(PermissionDenied, "ingest.database.denied") as raised:
        copy.load()
    assert "as its owner, CREATE PUBLICATION" in raised.value.message
    copy.run(f"ALTER TABLE $t OWNER TO {USER}")
    copy.postgres.run(f"ALTER USER {USER} NOREPLICATION")
    try:
        with expect_error(PermissionDenied, "ingest.database.denied") as raised:
            copy.load()
        assert raised.value.message.endswith(f"may not read changes: ALTER USER {USER} REPLICATION")
    finally:
        copy.postgres.run(f"ALTER USER {USER} REPLICATION")
    copy.run(
        "CREATE PUBLICATION ours FOR TABLE $t", f"GRANT SELECT ON $t TO {USER}", "INSERT INTO $t VALUES (1, 'a', NULL)"
    )
    copy.options = {"publication": "ours"}
    copy.load()
    copy.run("DELETE FROM $t")
    copy.load()
    assert copy.rows() == []
    copy.run("ALTER PUBLICATION ours SET (publish = 'insert')")
    with expect_error(PreconditionFailed, "ingest.log.publication"):
        copy.load(again=True)
    copy.options = {"publication": "nobody"}
    with expect_error(PreconditionFailed, "ingest.log.publication"):
        copy.load()
    copy.options = {}
    copy.name = "missing"
    with expect_error(NotFound, "ingest.database.missing"):
        copy.load()


def test_slot_that_is_in_use_is_a_reason_to_try_again(copy: LogCopy) -> None:
    copy.load()
    copy.run("INSERT INTO $t VALUES (1, 'a', NULL)")
    name = copy.slot()[0]
    copy.options = {}
    options = f"(proto_version '1', publication_names '{name}')"
    with closing(psycopg.connect(copy.postgres.socket_url, replication="database", autocommit=True)) as other:
        other.pgconn.send_query(f"START_REPLICATION SLOT {name} LOGICAL 0/0 {options}".encode())
        while copy.postgres.rows("SELECT active FROM pg_replication_slots") != [(True,)]:
            pass
        with expect_error(Unavailable, "ingest.log.busy"):
            copy.load()
    while copy.postgres.rows("SELECT active FROM pg_replication_slots") != [(False,)]:
        pass
    assert copy.load()


def test_server_without_a_logical_log_is_an_error(lake: ManagedTableFactory) -> None:
    with running_postgres_on_tcp() as postgres:
        copy = LogCopy(lake, postgres, postgres.new_schema("plain"))
        copy.run("CREATE TABLE $t (id int PRIMARY KEY)")
        with expect_error(PreconditionFailed, "ingest.log.level") as raised:
            copy.load()
        assert "wal_level is replica: set wal_level = logical, and restart it" in raised.value.message
