"""The tutorial about changes of PostgreSQL: its files and commands do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runtime.servers import Server, skiway
from spark_jobs.ingest_sources import PASSWORD, USER
from spark_jobs.lakes import SPARK
from spark_jobs.log_copies import running_postgres_with_a_log
from spark_jobs.test_sync_server import PATIENCE_S

pytestmark = SPARK

PAGE = (Path(__file__).parents[2] / "docs" / "postgres-changes.md").read_text()


@pytest.mark.timeout(900)
def test_the_tutorial_is_true(server_with_spark: Server, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, body in re.findall(r"```(?:yaml|sql)\n(?:#|--) (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (folder / name).write_text(body)
    secret = tmp_path / "password.txt"
    secret.write_text(PASSWORD)
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = block.splitlines()
    assert len(commands) <= 5
    with running_postgres_with_a_log() as postgres:
        postgres.run(
            f"CREATE SCHEMA shop AUTHORIZATION {USER}",
            "CREATE TABLE shop.orders (id int PRIMARY KEY, region text, price int)",
            f"ALTER TABLE shop.orders OWNER TO {USER}",
            "INSERT INTO shop.orders VALUES (1, 'eu', 5), (2, 'us', 3), (3, 'eu', 2)",
        )

        def run(line: str) -> str:
            changed = {
                "model": str(folder),
                "type=password,password=@password.txt": f"type=password,password=@{secret}",
                "postgresql://reader@127.0.0.1:5432/postgres": postgres.uri,
            }
            words = [changed.get(word, word) for word in shlex.split(line)[1:]]
            more = ("-o", "csv") if words[0] == "sql" else ()
            done = skiway(*words, *more, timeout_s=PATIENCE_S, SKIWAY_SERVER=server_with_spark.address)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            return done.stdout

        shown = [run(line) for line in commands]
        assert "can miss nothing" in shown[0]
        assert shown[-1].split() == ["region,total", "eu,7", "us,3"]
        postgres.run("DELETE FROM shop.orders WHERE id = 3", "UPDATE shop.orders SET id = 20, price = 4 WHERE id = 2")
        run(commands[1])
        run(commands[3])
        assert run(commands[4]).split() == ["region,total", "eu,5", "us,4"]
        deleted = run("skiway connectors delete shop --yes")
        (drop,) = re.findall(r"drop them there: (.*)", deleted)
        assert postgres.rows(drop)
        assert postgres.rows("SELECT slot_name FROM pg_replication_slots") == []
