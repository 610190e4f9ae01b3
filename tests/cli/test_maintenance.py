"""`skiway check`, `backup` and `restore` on the stores of a running server."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from runtime.servers import skiway, started
from skiway.client import AirportClient
from skiway.config import load
from skiway.runtime.stores import store_urls
from skiway.storage import open_stores

ROWS = pa.table({"id": [1, 2, 3]})


def test_backup_of_a_running_server_is_restored_and_checked(tmp_path: Path) -> None:
    home, restored, backup = tmp_path / "home", tmp_path / "restored", tmp_path / "backup"
    with started(home) as server:
        with AirportClient(server.addresses["airport"], "lake") as db:
            db.create_schema("s")
            db.create_table("s.t", ROWS.schema)
            db.insert("s.t", ROWS)
        made = skiway("backup", backup, "--home", home)
        assert (made.returncode, made.stdout.splitlines()[0].endswith(f"to {backup}")) == (0, True), made.stderr
        assert "listed but not copied" in made.stderr
        checked = skiway("check", "--home", home)
        assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout
        assert "1 managed table, " in checked.stderr
        assert checked.stderr.endswith(": no defects\n")

    refused = skiway("restore", backup, "--home", restored)
    assert refused.returncode == 1
    assert f"add --set warehouse.uri=file://{home}/warehouse" in refused.stderr
    here = ("--home", restored, "--set", f"warehouse.uri=file://{home}/warehouse")
    done = skiway("restore", backup, *here)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(": no defects\n")
    with started(restored, *map(str, here[2:])) as server, AirportClient(server.addresses["airport"], "lake") as db:
        assert db.scan("s.t").read_all().to_pydict() == ROWS.to_pydict()
        db.insert("s.t", ROWS)
        assert db.count("s.t") == 6

    next((home / "warehouse").rglob("*.parquet")).unlink()
    damaged = skiway("check", *here, "-o", "json")
    assert damaged.returncode == 1
    (defect,) = json.loads(damaged.stdout)
    assert defect["problem"] == "a file of table t is missing"
    assert skiway("check", *here, "--no-files").returncode == 0


def test_table_with_a_lost_record_is_reported_and_deleted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with started(home) as server, AirportClient(server.addresses["airport"], "lake") as db:
        db.create_schema("s")
        db.create_table("s.t", ROWS.schema)
    urls = store_urls(load(), home)
    with open_stores(urls.pointers, urls.blobs) as stores:
        (own,) = (each for each in stores.pointers.scan("/accounts/") if "/tables/by-id/" in each.key)
        stores.blobs.delete(own.blob_uri)
    with started(home) as server:
        shown = skiway("tables", "get", "lake.s.t", SKIWAY_SERVER=server.address)
        assert shown.returncode == 1
        assert "is damaged: its record is missing in the blob store" in shown.stderr
        deleted = skiway("tables", "delete", "lake.s.t", SKIWAY_SERVER=server.address)
        assert (deleted.returncode, deleted.stdout) == (0, "deleted table lake.s.t, which was damaged\n")
        assert skiway("check", "--home", home).stderr.endswith(": no defects\n")


def test_missing_homes_are_reported(tmp_path: Path) -> None:
    for command in (["check"], ["backup", tmp_path / "backup"]):
        done = skiway(*command, "--home", tmp_path / "nowhere")
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no home" in done.stderr
    assert not (tmp_path / "backup").exists()
