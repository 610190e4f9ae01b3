"""Each example is short, shows what to type, serves what it promises, and stops on a signal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import scope
from airport.certificates import Authority
from examples.scripts import SCRIPTS, load, running
from skiway.client import AirportClient, TlsOptions

# One scan of each: the catalog, the required token, the table, and its number of rows.
SCANS = {
    "auth": ("shop", "token-of-ada", "sales.orders", 2),
    "basic": ("demo", None, "sales.people", 2),
    "column_statistics": ("weather", None, "north.readings", 4),
    "ddl": ("scratch", None, "public.colours", 2),
    "duckdb_file": ("shop", None, "sales.customers", 2),
    "filters": ("taxi", None, "trips.rides", 100_000),
    "functions": ("tools", None, "demo.rides", 3),
    "geometry": ("atlas", None, "earth.cities", 2),
    "multi_catalog": ("south", None, "towns.people", 1),
    "table_refs": ("archive", None, "files.orders", 3),
    "time_travel": ("shop", None, "menu.prices", 2),
    "tls": ("vault", None, "safe.notes", 1),
    "transactions": ("bank", None, "ledger.bookings", 2),
    "writable_table": ("todo", None, "home.notes", 2),
}


# Scripts are short, except those that show many features.
LONG = {"duckdb_file": 430, "functions": 130, "transactions": 140, "writable_table": 85, "geometry": 65, "ddl": 65}


def test_every_script_is_covered() -> None:
    assert sorted(SCANS) == [script.stem for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_are_short(script: Path) -> None:
    assert len(script.read_text().splitlines()) < LONG.get(script.stem, 60)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_show_what_to_type(script: Path) -> None:
    docstring = load(script.stem).__doc__ or ""
    catalog, _, table, _ = SCANS[script.stem]
    assert "INSTALL airport FROM community; LOAD airport;" in docstring
    assert re.search(rf"ATTACH '{catalog}' \(TYPE airport, LOCATION 'grpc(\+tls)?://[\w.]+:50051'\);", docstring)
    assert f"{catalog}.{table}" in docstring
    assert f"python examples/{script.name} " in docstring


ENDS = [
    *((name, signal.SIGINT) for name in SCANS),
    *(
        (name, signal.SIGTERM) for name in ("basic", "duckdb_file", "filters", "table_refs")
    ),  # all but the first have files to remove
]


@pytest.mark.parametrize(
    ("name", "number"), scope.sample(ENDS, every=3), ids=[f"{name}-{number.name}" for name, number in ENDS]
)
def test_script_serves_until_it_is_stopped(name: str, number: int, tmp_path: Path) -> None:
    location, trusted = ("grpc://127.0.0.1:0",), None
    if name == "tls":
        authority = Authority(tmp_path)
        pair = authority.issue("server")
        location = (pair.certificate, pair.key, "grpc+tls://127.0.0.1:0")
        trusted = TlsOptions(root_certificates=authority.certificate)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    catalog, token, table, rows = SCANS[name]
    fresh = number == signal.SIGTERM  # some in a new interpreter, which must also exit without a warning
    with running(name, *location, temporary=temporary, fresh=fresh) as script:
        with AirportClient(script.location, catalog, token=token, tls=trusted) as db:
            assert db.scan(table).read_all().num_rows == rows
        code, out, log = script.end(number)
    assert code == 0, log
    assert out.strip() == (load(name).__doc__ or "").strip()
    assert f"ATTACH '{catalog}' (TYPE airport, LOCATION '{script.location}')" in log
    assert "Traceback" not in log
    assert "Warning" not in log
    assert list(temporary.iterdir()) == []


def test_tls_script_without_arguments_explains_its_usage() -> None:
    script = next(script for script in SCRIPTS if script.stem == "tls")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert result.returncode == 1
    assert "python examples/tls.py server.pem server.key [location]" in result.stderr
    assert "Traceback" not in result.stderr
