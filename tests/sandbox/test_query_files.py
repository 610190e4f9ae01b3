"""Queries over Parquet files, which DuckDB reads itself: only those that the server opened, and the same ones twice."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandbox.running_queries import NAME, ROWS, open_descriptors, result, scanned
from skiway.errors import InvalidArgument, SkiwayError
from skiway.sandbox.queries import Queries, QueryProcess
from skiway.sandbox.relations import FileColumn, FileGroup, Relation, StoredQuery

COLUMNS = [FileColumn("id", "BIGINT", "id"), FileColumn("v", "DOUBLE", "v"), FileColumn("text", "VARCHAR", "text")]


def group(columns: Sequence[FileColumn], *paths: Path) -> FileGroup:
    return FileGroup([partial(os.open, path, os.O_RDONLY) for path in paths], columns)


def in_files(*groups: FileGroup) -> Relation:
    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        raise AssertionError("DuckDB reads the files itself")

    return Relation(NAME, ROWS.schema, scan, groups)


def test_columns_of_files_have_names_of_their_own_and_constant_values(process: QueryProcess, tmp_path: Path) -> None:
    now, then = tmp_path / "it's now.parquet", tmp_path / "then.parquet"
    pq.write_table(ROWS, now, row_group_size=5)
    pq.write_table(pa.table({"nu'm\"ber": pa.array([100], pa.int32()), "text": [7], "id": [8]}), then)
    older = [
        FileColumn("id", "BIGINT", "nu'm\"ber", is_widened=True),
        FileColumn("v", "DOUBLE"),
        FileColumn("text", "VARCHAR", value="it's"),
    ]
    relation = in_files(group(COLUMNS, now), group(older, then))
    assert result(process, "SELECT count(*) AS n, max(id) AS m FROM s.t", relation) == [{"n": 31, "m": 100}]
    assert result(process, "SELECT count(*) AS n FROM s.t WHERE v > 1000", relation) == [{"n": 3}]
    assert result(process, "SELECT * FROM s.t WHERE id = 100", relation) == [{"id": 100, "v": None, "text": "it's"}]
    assert result(process, "SELECT count(*) AS n FROM s.t WHERE text = 'it''s'", relation) == [{"n": 1}]


def test_description_of_a_query_over_files_opens_none_of_them(process: QueryProcess, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = pa.table({"id": [1], "small": [2], "v": [0.5], "text": ["a"], "deep": [{"at": [datetime(2026, 1, 1)]}]})
    pq.write_table(values, path)
    columns = [
        *COLUMNS,
        FileColumn("deep", 'STRUCT("at" TIMESTAMP[])', "deep"),
        FileColumn("key", "UUID"),
        FileColumn("wide", "HUGEINT", "small", is_widened=True),
    ]
    sql = "SELECT *, id + 1 AS next FROM s.t"
    unread = in_files(group(columns, tmp_path / "missing.parquet"))
    described, rows = process.run(sql, [unread], default=["lake"], describe=True)
    assert list(rows) == []
    found, rows = process.run(sql, [in_files(group(columns, path))], default=["lake"])
    assert described.equals(found, check_metadata=True)
    assert [batch.num_rows for batch in rows] == [1]


def test_more_files_than_fit_into_one_message(process: QueryProcess, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    relation = in_files(group(COLUMNS, *[tmp_path / "a.parquet"] * 250), group(COLUMNS, tmp_path / "a.parquet"))
    before = open_descriptors()
    for _ in range(5):  # the process closes its files, too: it may have as many again
        assert result(process, "SELECT count(*) AS n FROM s.t", relation) == [{"n": 30 * 251}]
    assert open_descriptors() <= before


def test_file_that_cannot_be_opened_ends_the_query_and_its_process(queries: Queries, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    process = queries.start()
    process.parse("SELECT * FROM s.t")
    relation = in_files(group(COLUMNS, *[tmp_path / "a.parquet"] * 150, tmp_path / "missing.parquet"))
    with pytest.raises(FileNotFoundError):
        process.run("SELECT * FROM s.t", [relation], default=["lake"])
    process.close()
    assert not process.is_alive, "it waits for files, and would take those of the next query for them"


def test_files_can_be_replaced_after_they_were_opened(process: QueryProcess, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(ROWS, path)

    def opened() -> int:
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()
        return descriptor

    relation = in_files(FileGroup([opened], COLUMNS))
    assert result(process, "SELECT count(*) AS n FROM s.t", relation) == [{"n": 30}]


def test_only_files_of_relations_can_be_read(process: QueryProcess, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        pq.write_table(ROWS, tmp_path / f"{name}.parquet")
    relation = in_files(group(COLUMNS, tmp_path / "mine.parquet"))
    for sql in (
        f"SELECT * FROM '{tmp_path}/other.parquet'",
        f"SELECT * FROM '{tmp_path}/*.parquet'",
        f'SELECT * FROM "{tmp_path}/mine.parquet/../other.parquet"',
        "SELECT * FROM '/proc/self/fd/0'",
        "SELECT * FROM '/proc/self/environ'",
    ):
        with pytest.raises(SkiwayError, match=r"disabled by configuration|does not exist"):
            result(process, sql, relation)


# -- kept files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files in each message to a process."""
    found = list[int]()
    send = socket.send_fds

    def count(to: socket.socket, texts: list[bytes], descriptors: list[int]) -> int:
        found.append(len(descriptors))
        return send(to, texts, descriptors)

    monkeypatch.setattr(socket, "send_fds", count)
    return found


def query(queries: Queries, sql: str, *relations: Relation, owner: str = "", **options: Any) -> list[dict[str, Any]]:
    """The rows of a query in a process that may have served others before."""
    process = queries.start(owner)
    try:
        return result(process, sql, *relations, **options)
    finally:
        process.close()


@pytest.fixture
def single() -> Iterator[Queries]:
    """One process for all queries."""
    made = Queries(memory_limit="300MB", workers=1, threads=1)
    yield made
    made.close()


def test_next_query_over_the_same_files_uses_the_kept_ones(single: Queries, tmp_path: Path, sent: list[int]) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    relation = in_files(group(COLUMNS, tmp_path / "a.parquet"))
    assert query(single, "SELECT count(*) AS n FROM s.t", relation) == [{"n": 30}]
    described = single.start()
    schema, rows = described.run("SELECT id FROM s.t", [relation], default=["lake"], describe=True)
    assert (schema.names, list(rows)) == (["id"], [])
    described.close()
    assert query(single, "SELECT max(id) AS m FROM s.t", relation) == [{"m": 29}]
    with pytest.raises(SkiwayError, match="Could not convert"):
        query(single, "SELECT CAST(text AS INTEGER) FROM s.t", relation)
    assert sent == [1]
    assert query(single, "SELECT min(id) AS m FROM s.t", relation) == [{"m": 0}]
    assert sent == [1, 1], "a query that fails ends its database"


def test_replaced_and_rewritten_files_are_read_again(single: Queries, tmp_path: Path) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    relation = in_files(group([FileColumn("id", "BIGINT", "id")], path))

    def largest() -> int:
        return int(query(single, "SELECT max(id) AS m FROM s.t", relation)[0]["m"])

    def write(first: int, to: Path) -> None:
        pq.write_table(pa.table({"id": range(first, first + 30)}), to, compression="none")

    write(0, path)
    assert largest() == 29
    write(100, other)
    other.rename(path)
    assert largest() == 129
    before = path.stat()
    write(200, path)
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert largest() == 229, "the same file of the same size has other contents"


@pytest.mark.parametrize("change", ["name", "columns", "views", "default", "plain", "more files"])
def test_other_relations_and_views_are_not_those_of_the_last_query(
    single: Queries, tmp_path: Path, change: str
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    one = group(COLUMNS, tmp_path / "a.parquet")
    sql = "SELECT count(id) AS n FROM t" if change == "default" else "SELECT count(id) AS n FROM s.t"
    default = ["lake", "s"] if change == "default" else ["lake"]
    view = StoredQuery(("lake", "s", "v"), "SELECT id FROM s.t LIMIT 7")
    views = [view] if change == "views" else []
    if change == "views":
        sql = "SELECT count(id) AS n FROM s.v"
    assert query(single, sql, in_files(one), default=default, views=views) == [{"n": 30 if change != "views" else 7}]
    match change:
        case "name":
            renamed = Relation(("lake", "s", "u"), ROWS.schema, scanned().scan, [one])
            assert query(single, "SELECT count(id) AS n FROM s.u", renamed) == [{"n": 30}]
            with pytest.raises(InvalidArgument, match="does not exist"):
                query(single, sql, renamed)
        case "columns":
            constant = [FileColumn("id", "BIGINT"), *COLUMNS[1:]]
            assert query(single, sql, in_files(group(constant, tmp_path / "a.parquet"))) == [{"n": 0}]
        case "views":
            shorter = StoredQuery(view.name, "SELECT id FROM s.t LIMIT 3")
            assert query(single, sql, in_files(one), views=[shorter]) == [{"n": 3}]
        case "default":
            with pytest.raises(InvalidArgument, match="does not exist"):
                query(single, sql, in_files(one), default=["lake"])
        case "plain":
            for plain in (True, False):
                process = single.start()
                schema, rows = process.run("SELECT uuid() AS key", [in_files(one)], default=["lake"], plain=plain)
                list(rows)
                process.close()
                assert (schema.field("key").type == pa.string()) is plain
        case "more files":
            assert query(single, sql, in_files(one, one)) == [{"n": 60}]


def test_another_owner_cannot_name_the_tables_of_the_last_query(
    single: Queries, tmp_path: Path, sent: list[int]
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    relation = in_files(group(COLUMNS, tmp_path / "a.parquet"))
    query(single, "SELECT count(*) FROM s.t", relation, owner="two")
    query(single, "SELECT count(*) FROM s.t", relation, owner="one")
    assert sent == [1, 1], "each owner has databases of its own"
    for sql in ("SELECT * FROM s.t", "SELECT * FROM lake.s.t", "SELECT * FROM '/proc/self/fd/9'"):
        with pytest.raises(InvalidArgument, match=r"does not exist|disabled by configuration"):
            query(single, sql, owner="two")


@pytest.mark.parametrize("name", [NAME, ("memory", "main", "t"), ("Memory", "s", "t"), ("x y", 'a"b', "t")])
def test_description_leaves_nothing_for_the_next_one(single: Queries, name: tuple[str, str, str]) -> None:
    relation = Relation(name, ROWS.schema, scanned().scan)
    sql = "SELECT * FROM " + ".".join('"' + part.replace('"', '""') + '"' for part in name)
    for _ in range(2):
        process = single.start()
        views = [StoredQuery((*name[:2], "v"), sql)]
        described, rows = process.run(sql, [relation], default=list(name[:1]), describe=True, views=views)
        assert (described.names, list(rows)) == (ROWS.column_names, [])
        with pytest.raises(InvalidArgument, match="does not exist"):
            process.run(sql, [], default=["lake"], describe=True)
        for catalogs in (sql, sql.replace('"t"', '"v"')):
            with pytest.raises(InvalidArgument, match="does not exist"):
                process.run(catalogs, [], default=list(name[:1]), describe=True)
        process.close()


def open_files(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            yield str(descriptor.readlink())


def test_idle_process_closes_the_kept_files(tmp_path: Path, sent: list[int]) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    relation = in_files(group(COLUMNS, tmp_path / "a.parquet"))
    queries = Queries(memory_limit="300MB", workers=1, threads=1, keep_s=0.05)
    process = queries.start()
    result(process, "SELECT count(*) AS n FROM s.t", relation)
    process.close()
    deadline = time.monotonic() + 200
    while any(str(tmp_path) in file for file in open_files(process.pid)):
        assert time.monotonic() < deadline, "the file is still open"
        time.sleep(0.01)
    assert query(queries, "SELECT count(*) AS n FROM s.t", relation) == [{"n": 30}]
    assert sent == [1, 1]
    queries.close()


def test_owner_gets_the_process_that_has_its_files(tmp_path: Path, sent: list[int]) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    relation = in_files(group(COLUMNS, tmp_path / "a.parquet"))
    queries = Queries(memory_limit="300MB", workers=3, threads=1)
    one, two = queries.start("one"), queries.start("two")
    result(one, "SELECT count(*) AS n FROM s.t", relation)
    result(two, "SELECT 1")
    one.close()
    two.close()
    query(queries, "SELECT count(*) AS n FROM s.t", relation, owner="one")
    assert sent == [1]
    queries.close()
