"""`skiway.merge`: MERGE on the server, compared with DuckDB's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lake.lakes import Lake, call_function
from scope import sample
from skiway.client import AirportClient
from skiway.errors import (
    Conflict,
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SkiwayError,
)
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.lake.writing.writable import MergeIntoEmpty, MergeRows
from skiway.sql.queries import MERGE_ROWID, MergeQuery

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("stock", pa.int32())])
ROWS = pa.table({"id": [1, 2, 3, 4], "name": ["a", "b", None, "d"], "stock": [10, 20, 30, 40]}, SCHEMA)
SOURCE = "SELECT * FROM (VALUES (2, 'B', 2), (4, NULL, 4), (7, 'g', 7), (8, 'h', NULL)) AS new(id, name, stock)"
ON = "target.id = source.id"

CLAUSES = [
    "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT",
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT BY NAME",
    "WHEN MATCHED THEN DELETE",
    "WHEN NOT MATCHED THEN INSERT",
    "WHEN MATCHED THEN UPDATE SET stock = target.stock + source.stock",
    "WHEN MATCHED AND source.stock > 3 THEN DELETE WHEN MATCHED THEN UPDATE SET NAME = upper(target.name) || '!'",
    "WHEN NOT MATCHED AND source.stock IS NULL THEN DO NOTHING WHEN NOT MATCHED THEN INSERT (id, stock) VALUES (id, 5)",
    "WHEN NOT MATCHED BY SOURCE AND stock > 20 THEN UPDATE SET stock = stock + 1",
    "WHEN NOT MATCHED BY SOURCE AND target.id = 3 THEN UPDATE SET name = 'three' WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED BY TARGET THEN INSERT VALUES (source.id * 10, 'x', 1) "
    "WHEN NOT MATCHED BY SOURCE THEN DELETE",
]
MODES = [(2, "copy-on-write"), (2, "merge-on-read"), (3, "copy-on-write"), (3, "merge-on-read")]


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        yield client


def merge(db: AirportClient, source: str = SOURCE, on: str = ON, table: str = "s.t", **named: Any) -> dict[str, Any]:
    return call_function(db, "merge", table, source, on, **named)


def create(lake: Lake, db: AirportClient, rows: pa.Table = ROWS, *, version: int = 2, mode: str = "") -> None:
    lake.managed_table(SCHEMA, **{"format-version": str(version), "write.merge.mode": mode or "copy-on-write"})
    for number in range(rows.num_rows):  # two files, one of which is not changed by most clauses
        if number % 2 == 0:
            db.insert("s.t", rows.slice(number, 2))


def rows_of(db: AirportClient) -> list[dict[str, Any]]:
    return db.scan("s.t").read_all().sort_by("id").to_pylist()


def expected(clauses: str, *, source: str = SOURCE, on: str = ON, rows: pa.Table = ROWS) -> list[dict[str, Any]]:
    with duckdb.connect() as plain:
        plain.execute("CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR, stock INTEGER)")
        plain.register("rows", rows)
        plain.execute("INSERT INTO t FROM rows")
        plain.execute(f"MERGE INTO t AS target USING ({source}) AS source ON {on} {clauses}")
        return plain.sql("FROM t ORDER BY id").to_arrow_table().to_pylist()


@pytest.mark.parametrize(
    ("clauses", "version", "mode"), sample([(clauses, *mode) for clauses in CLAUSES for mode in MODES], every=5)
)
def test_result_is_that_of_duckdb(lake: Lake, db: AirportClient, clauses: str, version: int, mode: str) -> None:
    create(lake, db, version=version, mode=mode)
    before = db.scan("skiway.snapshots").read_all().num_rows
    done = merge(db, clauses=clauses)
    after = rows_of(db)
    assert after == expected(clauses)
    assert db.scan("skiway.snapshots").read_all().num_rows == before + 1
    assert done["table"] == "managed.s.t"
    assert done["inserted"] - done["deleted"] == len(after) - ROWS.num_rows


@pytest.mark.parametrize("on", ["false", "(FALSE)"])
@pytest.mark.parametrize(
    "clauses",
    [
        "WHEN NOT MATCHED THEN INSERT WHEN NOT MATCHED BY SOURCE THEN DELETE",
        "WHEN NOT MATCHED BY SOURCE AND id > 2 THEN UPDATE SET name = 'old'",
        CLAUSES[0],
    ],
)
def test_rows_that_never_match_are_not_compared(lake: Lake, db: AirportClient, on: str, clauses: str) -> None:
    create(lake, db)
    source = "SELECT 5 AS id, 'five' AS name, 50 AS stock"
    merge(db, source, on, clauses=clauses)
    assert rows_of(db) == expected(clauses, source=source, on=on)
    query = MergeQuery({"id": "BIGINT"}, "FROM range(9) AS r(id)", on, clauses.replace("name = 'old'", "id = 0"))
    with duckdb.connect() as plain:
        plain.execute(f'CREATE TABLE t AS SELECT range AS id, range AS "{MERGE_ROWID}" FROM range(9)')
        ((_, plan),) = plain.execute("EXPLAIN " + query.sql("t", ["id"])).fetchall()
    assert plan.count("JOIN ") <= plan.count("EMPTY_RESULT")


def test_unchanged_files_stay(lake: Lake, db: AirportClient) -> None:
    create(lake, db)
    files = set(db.scan("skiway.files").read_all()["path"].to_pylist())
    assert merge(db, source="SELECT 1 AS id, 'z' AS name")["updated"] == 1
    after = set(db.scan("skiway.files").read_all()["path"].to_pylist())
    assert len(files & after) == 1
    assert rows_of(db)[0] == {"id": 1, "name": "z", "stock": 10}


def test_empty_table_takes_all_rows(lake: Lake, db: AirportClient) -> None:
    lake.managed_table(SCHEMA)
    assert merge(db) == {"table": "managed.s.t", "inserted": 4, "updated": 0, "deleted": 0}
    assert rows_of(db) == expected(CLAUSES[0], rows=ROWS.slice(0, 0))


def test_nothing_to_do_makes_no_snapshot(lake: Lake, db: AirportClient) -> None:
    create(lake, db)
    before = db.scan("skiway.snapshots").read_all()
    assert merge(db, on="false", clauses="WHEN MATCHED THEN DELETE")["deleted"] == 0
    assert db.scan("skiway.snapshots").read_all() == before


def test_source_can_read_the_lake(lake: Lake, db: AirportClient) -> None:
    create(lake, db)
    source = "SELECT id + 100 AS id, name, stock FROM s.t AS old WHERE stock > 20 -- the dearest"
    assert merge(db, source=source)["inserted"] == 2
    assert [row["id"] for row in rows_of(db)] == [1, 2, 3, 4, 103, 104]


def test_planning_changes_nothing(lake: Lake, db: AirportClient) -> None:
    create(lake, db)
    db.call("skiway.merge", "s.t", SOURCE, ON).close()
    assert rows_of(db) == ROWS.to_pylist()


@pytest.mark.parametrize(
    ("arguments", "clauses", "error", "message"),
    [
        ((SOURCE, "true"), "", ConstraintViolation, "matches more than one row of the source"),
        (("SELECT 1 AS id, 2 AS other", ON), "", InvalidArgument, "column 'other', which the table has not"),
        (("SELECT NULL AS id", ON), "", ConstraintViolation, "NOT NULL constraint failed: t.id"),
        (
            ("SELECT 'x' AS id", "true"),
            "WHEN MATCHED THEN UPDATE SET stock = source.id",
            InvalidArgument,
            "Could not convert",
        ),
        ((SOURCE, ""), "", InvalidArgument, "merge needs 'on'"),
        (("", ON), "", InvalidArgument, "merge needs 'source'"),
        ((SOURCE, "target.nope = 1"), "", InvalidArgument, "nope"),
        ((SOURCE, ON), "WHEN MATCHED THEN INSERT", InvalidArgument, "only WHEN NOT MATCHED can INSERT"),
        ((SOURCE, ON), "WHEN NOT MATCHED THEN DELETE", InvalidArgument, "there is no row to delete"),
        ((SOURCE, ON), "WHEN NOT MATCHED THEN UPDATE", InvalidArgument, "there is no row to update"),
        ((SOURCE, ON), "WHEN NOT MATCHED BY SOURCE THEN UPDATE", InvalidArgument, "there is no source row to copy"),
        ((SOURCE, ON), "WHEN MATCHED THEN UPDATE SET nope = 1", InvalidArgument, "the table has no column 'nope'"),
        ((SOURCE, ON), "WHEN NOT MATCHED THEN INSERT (id) VALUES (1, 2)", InvalidArgument, "1 columns and 2 values"),
        ((SOURCE, ON), "WHEN MATCHED THEN DELETE WHEN MATCHED THEN UPDATE", InvalidArgument, "is never reached"),
        ((SOURCE, ON), "MATCHED", InvalidArgument, "the clauses of merge are invalid"),
        ((SOURCE, ON), "WHEN MATCHED THEN DELETE; DROP TABLE t", InvalidArgument, "the clauses of merge are invalid"),
        (("SELECT * FROM read_text('/etc/hostname')", ON), "", InvalidArgument, "read_text"),
    ],
)
def test_invalid_calls_change_nothing(
    lake: Lake,
    db: AirportClient,
    arguments: tuple[str, str],
    clauses: str,
    error: type[SkiwayError],
    message: str,
) -> None:
    create(lake, db)
    before = sorted(path.name for path in lake.folder.rglob("*.parquet"))
    with pytest.raises(error, match=message):
        merge(db, *arguments, clauses=clauses)
    assert rows_of(db) == ROWS.to_pylist()
    assert sorted(path.name for path in lake.folder.rglob("*.parquet")) == before


@pytest.mark.parametrize(("kind", "rows"), [(MergeRows, ROWS), (MergeIntoEmpty, ROWS.slice(0, 0))])
def test_rows_that_others_insert_meanwhile_are_a_conflict(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch, kind: Any, rows: pa.Table
) -> None:
    create(lake, db, rows)
    commit = kind.commit

    def late(self: Any) -> Any:
        with lake.client() as other:
            other.insert("s.t", pa.table({"id": [7], "name": ["other"], "stock": [0]}, SCHEMA))
        return commit(self)

    monkeypatch.setattr(kind, "commit", late)
    with pytest.raises(Conflict, match=r"no longer the current one|it has rows by now"):
        merge(db)
    assert [row["id"] for row in rows_of(db)] == [*rows["id"].to_pylist(), 7]


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 0)])
def test_failed_merge_leaves_no_files(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch, rows: pa.Table
) -> None:
    """The first rows are in files already when the last one fails."""
    create(lake, db, rows)
    before, created = set(lake.folder.rglob("*.parquet")), list[str]()
    create_file = TableFiles.create

    def noted(self: TableFiles, uri: str) -> Any:
        created.append(uri)
        return create_file(self, uri)

    monkeypatch.setattr(TableFiles, "create", noted)
    for module in ("writable", "inserting"):
        monkeypatch.setattr(f"skiway.lake.writing.{module}.BUFFER_BYTES", 1)
    source = "SELECT nullif(i, 39999) AS id, 'n' AS name, 1 AS stock FROM range(40000) AS r(i)"
    with pytest.raises(ConstraintViolation, match="NOT NULL"):
        merge(db, source)
    assert created
    assert set(lake.folder.rglob("*.parquet")) == before


def test_merge_needs_rights_and_a_table(lake: Lake, db: AirportClient) -> None:
    create(lake, db)
    with lake.client(token="reader") as reader, pytest.raises(PermissionDenied):
        merge(reader)
    with pytest.raises(NotFound, match=r"managed\.s\.nothing does not exist"):
        merge(db, table="s.nothing")
    assert rows_of(db) == ROWS.to_pylist()
