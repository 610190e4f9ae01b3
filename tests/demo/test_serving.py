"""`skiway demo` serves its lake until it is stopped."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from demo.demos import MAKING_S, Serving, demo, serving
from runtime.servers import skiway
from skiway.airport.wire.duckdb_sql import extension_of
from skiway.client import AirportClient, col

pytestmark = [pytest.mark.timeout(1200), pytest.mark.needs("java", "spark")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_demo_cleanly(home: Path, tmp_path: Path, number: signal.Signals) -> None:
    with serving(home, tmp_path) as served:
        location = served.location()
        assert json.loads((home / "ready.json").read_text())["airport"] == location
        assert served.ended(number) == 0
        assert served.errors.read_text() == ""


def test_printed_addresses_can_be_read_and_written(home: Path, served: Serving) -> None:
    with AirportClient(served.location(), "lake") as db:
        weather = pq.read_table(home / "sources" / "mountain-data" / "weather" / "readings")
        assert db.count("weather.readings") == weather.num_rows
        before = db.count("planning.crews")
        changed = db.update("planning.crews", {"note": "icy"}, where=col("groomers") > 6)
        assert changed.count > 0
        assert db.count("planning.crews", where=col("note") == "icy") >= changed.count
        (rest,) = re.findall(r"(http://\S+/iceberg)", served.printed())
        catalog = RestCatalog("lake", uri=rest, warehouse="lake")
        assert catalog.load_table("planning.crews").scan().to_arrow().num_rows == before


def test_trails_are_read_as_geometries(home: Path, served: Serving) -> None:
    with AirportClient(served.location(), "lake") as db:
        trails = db.scan("maps.trails", columns=["trail", "route"]).read_all()
    assert extension_of(trails.schema.field("route")) == ("geoarrow.wkb", '{"crs": "OGC:CRS84"}')
    (kind,) = duckdb.sql("SELECT DISTINCT typeof(route) FROM trails").fetchone() or ("",)
    assert kind == "GEOMETRY('OGC:CRS84')"
    path = home / "sources" / "mountain-data" / "maps" / "trails" / "trails.parquet"
    query = "SELECT trail, ST_AsText(route) FROM {} ORDER BY 1"
    assert duckdb.sql(query.format("trails")).fetchall() == duckdb.sql(query.format(f"'{path}'")).fetchall()


@pytest.mark.full
def test_spark_of_a_restarted_demo_starts_on_demand(home: Path, tmp_path: Path) -> None:
    log = (home / "spark.log").stat().st_size
    with serving(home, tmp_path) as served:
        address = served.location().removeprefix("grpc://")
        assert (home / "spark.log").stat().st_size == log
        sync = ("connectors", "sync", "ticket-desk", "--full", "--watch")
        synced = skiway(*sync, timeout_s=MAKING_S, SKIWAY_SERVER=address)
        assert synced.returncode == 0, synced.stderr
        assert (home / "spark.log").stat().st_size > log


def test_port_in_use_is_reported_with_the_option_to_change(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        run = demo(home, "--grpc", address, "--http", "127.0.0.1:0")
    assert run.returncode == 1
    assert re.fullmatch(rf"skiway: cannot listen on {address}: address already in use; .*--grpc.*\n", run.stderr)
