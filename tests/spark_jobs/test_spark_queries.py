"""Queries of callers on a real Spark: their results, and attacks by code that has got around all checks of the SQL."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.servers import Server, eventually, started
from skiway.client import AirportClient, Metastore, Rows
from skiway.errors import SkiwayError
from skiway.spark_queries.engine import SparkEngine, SparkLimits, SparkPlacement, SparkQuery
from spark_jobs.lakes import SPARK
from spark_queries.attacks import ATTACKS
from spark_queries.test_confinement import needs_landlock

pytestmark = [*SPARK, needs_landlock]

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
NAMES = {"ada": ("default", "administrator"), "eve": ("other", "administrator"), "root": ("", "platform-admin")}


def token_of(name: str) -> str:
    return f"{name}-token-with-more-than-32-characters"


def entry(name: str, account: str, role: str) -> str:
    digest = sha256(token_of(name).encode()).hexdigest()
    return f'[[tokens]]\nname = "{name}"\naccount = "{account}"\nroles = ["{role}"]\nsha256 = "{digest}"\n'


@dataclass(frozen=True)
class SparkServer:
    """A server of two accounts that runs queries on Spark, with `temporary` for temporary files."""

    server: Server
    home: Path
    temporary: Path

    def client(self, name: str) -> AirportClient:
        return AirportClient(self.server.addresses["airport"], "lake", token=token_of(name))

    def create_accounts(self) -> None:
        """Create the second account, which eve uses, with a catalog."""
        with Metastore(self.server.address, token=token_of("root")) as platform:
            platform.accounts.create("other", id="other")
        with Metastore(self.server.address, token=token_of("eve")) as other:
            other.catalogs.create("lake")

    def processes(self) -> list[int]:
        """The processes of its queries, also those that are no longer its descendants: they have its folder in their environment."""
        variable = f"{self.temporary}/skiway-spark-query-".encode()
        return [
            int(each.name)
            for each in Path("/proc").iterdir()
            if each.name.isdecimal() and variable in _read(each / "environ")
        ]

    def folders(self) -> list[Path]:
        """The folders of its queries."""
        return list(self.temporary.glob("skiway-spark-query-*"))


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    folder = tmp_path_factory.mktemp("queries")
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    (home / "tokens.toml").write_text("".join(entry(name, *facts) for name, facts in NAMES.items()))
    (home / "tokens.toml").chmod(0o600)
    conf = ";".join(f"{name}={value}" for name, value in QUICK.items())
    settings = ("auth.mode=token", "sql.spark.enabled=true", f"sql.spark.conf={conf}", "sql.spark.max_rows=100000")
    with pytest.MonkeyPatch.context() as patched, ExitStack() as running:
        patched.setenv("TMPDIR", str(temporary))
        server = running.enter_context(started(home, *(part for each in settings for part in ("--set", each))))
        made = SparkServer(server, home, temporary)
        made.create_accounts()
        for name in ("ada", "eve"):
            with made.client(name) as client:
                client.create_schema("s")
                rows = pa.table({"id": pa.array(range(1000)), "owner": [name] * 1000})
                client.create_table("s.t", rows.schema)
                for first in (0, 500):
                    client.insert("s.t", rows.slice(first, 500))
        yield made


def on_spark(client: AirportClient, sql: str) -> pa.Table:
    return client.call("skiway.query", sql, named={"engine": "spark"}).read_all()


def test_rows_arrive_in_order_with_their_types(spark_server: SparkServer) -> None:
    sql = """
        WITH parts AS (SELECT id % 3 AS part, id FROM lake.s.t)
        SELECT part, part, count(*) AS n, CAST(avg(id) AS DECIMAL(10, 2)) AS mean, max(owner) AS owner, DATE '2026-01-02' AS day,
               TIMESTAMP '2026-01-02 03:04:05' AS moment, array(1, NULL) AS list, named_struct('a', 1) AS record, NULL AS nothing
        FROM parts JOIN s.t USING (id) GROUP BY part ORDER BY part DESC"""
    with spark_server.client("ada") as client:
        found = on_spark(client, sql)
    assert found.schema.names[:3] == ["part", "part_1", "n"]
    assert [(row["part"], row["n"], str(row["mean"]), row["owner"]) for row in found.to_pylist()] == [
        (2, 333, "500.00", "ada"), (1, 333, "499.00", "ada"), (0, 334, "499.50", "ada"),
    ]  # fmt: skip
    assert [str(found.schema.field(name).type) for name in ("mean", "day", "moment", "list", "record")] == [
        "decimal128(10, 2)", "date32[day]", "timestamp[us, tz=UTC]", "list<element: int32>", "struct<a: int32 not null>",
    ]  # fmt: skip
    assert spark_server.processes() == []


def test_query_sees_its_own_account_and_its_errors_are_explained(spark_server: SparkServer) -> None:
    sql = "SELECT CAST(concat('rows of ', max(owner)) AS INT) AS failed FROM s.t"
    with (
        spark_server.client("eve") as client,
        pytest.raises(SkiwayError, match=r"Spark rejects the query: \[CAST_INVALID_INPUT\].*'rows of eve'") as refused,
    ):
        on_spark(client, sql)
    assert "skiway_query_" not in str(refused.value)


def test_endless_query_ends_with_its_client(spark_server: SparkServer) -> None:
    sql = "SELECT sum(a.id * b.id * c.id * d.id) AS n FROM s.t a, s.t b, s.t c, s.t d"

    def read(rows: Rows) -> None:
        with pytest.raises(SkiwayError):
            rows.read_next_batch()

    def scans() -> int:
        return other.scan("skiway.plans").read_all().num_rows

    with spark_server.client("ada") as other, spark_server.client("ada") as client:
        planned = scans()
        rows = client.call("skiway.query", sql, named={"engine": "spark"})
        reader = threading.Thread(target=read, args=(rows,))
        reader.start()
        eventually(lambda: scans() > planned, within_s=120)  # Spark runs the query
        assert (len(spark_server.folders()), spark_server.processes() != []) == (1, True)
    reader.join(200)
    assert not reader.is_alive()
    eventually(lambda: spark_server.processes() == [], within_s=60)
    eventually(lambda: spark_server.folders() == [])


def test_arbitrary_code_in_spark_reaches_nothing_of_the_server(
    spark_server: SparkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SQL is passed to Spark without any check, as if all checks had failed."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    (spark_server.home / "secret").write_text("planted-secret")
    with socket.create_server(("127.0.0.1", _low_port())) as store:
        port = store.getsockname()[1]
        home, server = str(spark_server.home), str(spark_server.server.process.pid)
        program = f"import sys; sys.argv = ['', {home!r}, {server!r}, {port!r}]\n{ATTACKS}"
        sleeper = "import os; os.fork() or (os.setsid(), os.execvp('sleep', ['sleep', '600']))\n"
        code = (sleeper + program).encode().hex()
        script = f"{sys.executable} -c \\'exec(bytes.fromhex(\"{code}\"))\\'"
        sql = (
            f"SELECT reflect('java.lang.System', 'getenv', 'AWS_SECRET_ACCESS_KEY') AS variable, "
            f"(SELECT first(out) FROM (SELECT TRANSFORM(x) USING '{script}' AS (out STRING) FROM (SELECT 1 AS x))) AS attacks, "
            f"(SELECT first(out) FROM (SELECT TRANSFORM(x) USING 'env' AS (out STRING) FROM (SELECT 1 AS x)) "
            f"WHERE out LIKE '%planted%' OR out LIKE '%skiway_query%') AS variables"
        )
        engine = SparkEngine(SparkPlacement("local[2]", QUICK), SparkLimits())
        query = SparkQuery("a1", sql, {}, "skiway_query_canary")
        try:
            with engine.result("k", lambda: query, when_ended=lambda _: None) as (_, batches):
                (row,) = pa.Table.from_batches(batches).to_pylist()
        finally:
            engine.close()
    assert (row["variable"], row["variables"]) == ("null", None)
    found = json.loads(row["attacks"])
    assert (found.pop("own file"), found.pop("own attributes")) == ("done", "done")
    assert set(found.values()) == {"PermissionError", "OtherMount"}, found
    assert spark_server.processes() == []  # also the one that left the session
    assert spark_server.server.process.poll() is None


def _low_port() -> int:
    """A free port that the kernel does not give to clients, as those of databases and object stores are."""
    for port in range(20_000, 30_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")
