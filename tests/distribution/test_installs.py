"""Skiway installed into fresh environments, plain and with each extra, does what the extra is for.

`make test` covers the plain install, `memory` and `pytest`; with SKIWAY_TESTS=all (`make test-all`), every extra is installed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import scope
from distribution.environments import PROJECT, Environment, build, environment, unpack, variables
from examples.pages import README, programs
from skiway.foundation import extras

EVERY_EXTRA = scope.ALL
START_S = 120.0

# Each program needs a library that no plain install has; the error names this extra.
NEEDS_EXTRA = {
    "from skiway.airport.memory import MemoryCatalog; MemoryCatalog('scratch')": "memory",
    "from skiway.client import FunctionCall; next(FunctionCall('read_parquet', ('a.parquet',)).run(['id']))": "memory",
    "import skiway.airport.geometry": "geometry",
    "from skiway.airport import filters; filters.to_sql(filters.Filter(), dialect='sqlite')": "sql",
    "from skiway.duckdb import connect": "duckdb",
    "import skiway.demo": "lake",
    "import skiway.formats": "lake",
    "import skiway.lake": "lake",
    "import skiway.metastore": "lake",
    "import skiway.request_path": "lake",
    "import skiway.rest": "lake",
    "import skiway.rpc": "lake",
    "import skiway.runtime": "lake",
    "from skiway.storage import open_stores; open_stores('sqlite:///pointers.db')": "lake",
    "from skiway.security import open_secrets; open_secrets('file:///secrets')": "lake",
    "from skiway.spark_jobs.session import session; session('app')": "spark",
}

# The same with the extra `lake`, which is the server without Spark, PostgreSQL and AWS.
NEEDS_MORE_THAN_LAKE = {
    "from skiway.spark_jobs.session import session; session('app')": "spark",
    "from skiway.storage import open_pointers; open_pointers('postgresql://somebody@127.0.0.1/skiway')": "postgres",
    "from skiway.formats import open_source; open_source('iceberg', 'postgresql+psycopg://127.0.0.1/db',"
    " options={'iceberg.source': 'sql'})": "postgres",
    "from skiway.storage import open_pointers; open_pointers('dynamodb://skiway?region=us-east-1')": "aws",
    "from skiway.security import open_secrets; open_secrets('aws://skiway?region=us-east-1')": "aws",
    "from skiway.formats.object_stores import GcsStorage; GcsStorage({}).token": "gcs",
    "import skiway.vending.gcs_tokens": "gcs",
    "from skiway.formats.object_stores import AzureStorage; AzureStorage({}).bucket('a@b')": "azure",
    "import skiway.vending.azure_sas": "azure",
}

MEMORY = """
import pyarrow as pa
from skiway.airport import Server
from skiway.airport.catalog import CreateTable
from skiway.airport.memory import MemoryCatalog
from skiway.client import AirportClient

catalog = MemoryCatalog("scratch", schemas=["public"])
orders = catalog.schema("public").create_table(
    CreateTable("orders", pa.schema([pa.field("id", pa.int64())]), checks=("id > 0",))
)
with Server(catalog, port=0) as server, AirportClient(server.location, "scratch") as db:
    print(db.insert("public.orders", pa.table({"id": [1, 2]})).count, db.scan("public.orders").read_all().num_rows)
"""

GEOMETRY = """
from skiway.airport.geometry import geometries, geometry_array
print([point.wkt for point in geometries(geometry_array(["POINT (1 2)"]))])
"""

SPARK = """
from skiway.spark_jobs.profile.snapshots import profile_snapshot
from skiway.spark_jobs.session import session
spark = session("skiway", "local[1]")
print(spark.range(3).count())
spark.stop()
"""

# The driver is there, so that the server is what is missing.
POSTGRES = """
from skiway.errors import Unavailable
from skiway.storage import open_pointers
try:
    open_pointers("postgresql://somebody@127.0.0.1:1/skiway")
except Unavailable:
    print("unavailable")
"""

AWS = """
from skiway.errors import Unavailable
from skiway.security import open_secrets
from skiway.storage import open_pointers
options = {"aws_access_key_id": "id", "aws_secret_access_key": "key"}
open_secrets("aws://skiway?region=us-east-1", options=options)
try:
    open_pointers("dynamodb://skiway?region=us-east-1&endpoint=http://127.0.0.1:1", options=options)
except Unavailable:
    print("unavailable")
"""

GCS = """
from skiway.errors import Unavailable
from skiway.formats.iceberg.warehouse import Warehouse
import skiway.vending.gcs_tokens
warehouse = Warehouse.at("gs://lake/w", {"gcs.service-account-file": "/missing.json"})
try:
    warehouse.files(warehouse.folder("t")).find(warehouse.folder("t", "x"))
except Unavailable:
    print("unavailable")
"""

AZURE = """
from skiway.formats.object_stores import AzureStorage
import skiway.vending.azure_sas
print(AzureStorage({}).bucket("lake@skiway.dfs.core.windows.net").config["account_name"])
"""

EVERY_MODULE = """
import importlib, pkgutil, skiway
modules = [each.name for each in pkgutil.walk_packages(skiway.__path__, "skiway.") if "__main__" not in each.name]
for name in modules:
    importlib.import_module(name)
print(len(modules) > 100)
"""

SQL = """
from skiway.airport import filters
from skiway.testing import recordings
print(filters.to_sql(recordings().filters[0].filter, dialect="sqlite"))
"""

# The plugin is found by its entry point, and the recordings are part of the wheel.
PYTEST = '''
from pathlib import Path
import pytest

Path("test_catalog.py").write_text("""
import pyarrow as pa
import pytest
from skiway.airport import CatalogBuilder

@pytest.fixture
def airport_catalog():
    demo = CatalogBuilder("demo")
    demo.schema("s").table(schema=pa.schema({"id": pa.int64()}), name="t")(lambda scan: {"id": [1, 2]})
    return demo.build()

def test_rows(airport_client, airport_recordings):
    assert airport_client.scan("s.t").read_all()["id"].to_pylist() == [1, 2]
    assert len(airport_recordings.filters) > 100 and len(airport_recordings.conversations) > 100
""")
raise SystemExit(pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "test_catalog.py"]))
'''

PROGRAMS = {
    "memory": (MEMORY, "2 2\n"),
    "geometry": (GEOMETRY, "['POINT (1 2)']\n"),
    "sql": (SQL, '"i32" = 5\n'),
    "pytest": (PYTEST, r"1 passed"),
    "spark": (SPARK, "3\n"),
    "postgres": (POSTGRES, "unavailable\n"),
    "aws": (AWS, "unavailable\n"),
    "gcs": (GCS, "unavailable\n"),
    "azure": (AZURE, "skiway\n"),
    "all": (EVERY_MODULE, "True\n"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment without extras, from the wheel that the sdist makes."""
    sdist = build(PROJECT, "sdist", tmp_path_factory.mktemp("sdist"))
    project = unpack(sdist, tmp_path_factory.mktemp("unpacked"))
    with environment(build(project, "wheel", tmp_path_factory.mktemp("wheel"))) as made:
        yield made


def test_the_command_of_a_plain_install_says_which_extra_to_install_for_what(plain: Environment) -> None:
    for arguments in ([], ["--help"], ["serve"]):
        answer = plain.run("skiway", *arguments)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr == f"skiway: {extras.overview()}\n"
    assert [extra for extra in extras.EXTRAS if extra not in answer.stderr] == []


def test_the_library_of_a_plain_install_runs_the_example_of_the_readme(plain: Environment) -> None:
    plain.python("import skiway.airport, skiway.client")
    [(_, program, output)] = programs(README)
    assert plain.python(program) == output


def test_every_error_of_a_plain_install_names_the_missing_extra(plain: Environment) -> None:
    assert named_extras(plain, NEEDS_EXTRA) == NEEDS_EXTRA


@pytest.mark.timeout(600)  # pyspark is unpacked and started
@pytest.mark.parametrize("extra", PROGRAMS if EVERY_EXTRA else ["memory", "pytest"])
@pytest.mark.full
def test_an_extra_is_complete(wheel: Path, extra: str) -> None:
    program, output = PROGRAMS[extra]
    with environment(wheel, extra) as installed:
        printed = installed.python(program)
        assert printed == output if output.endswith("\n") else output in printed


if EVERY_EXTRA:

    @pytest.fixture(scope="module")
    def with_lake(wheel: Path) -> Iterator[Environment]:
        with environment(wheel, "lake") as made:
            yield made

    def test_the_lake_serves_without_spark(with_lake: Environment, tmp_path: Path) -> None:
        assert "serve" in with_lake.run("skiway", "--help").stdout
        ready = tmp_path / "ready.json"
        doors = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready)
        serve = with_lake.command("skiway", "serve", "--home", tmp_path / "lake", *doors)
        with subprocess.Popen(serve, env=variables(), stderr=subprocess.PIPE, text=True) as server:
            try:
                address = _address(server, ready)
                listed = with_lake.run("skiway", "catalogs", "list", "--server", address)
                assert listed.returncode == 0, listed.stderr
                assert "lake" in listed.stdout
                assert _synchronized(with_lake, address, tmp_path / "data") == "['people']\n"
                server.send_signal(signal.SIGTERM)
                assert server.wait(200) == 0
            finally:
                server.kill()

    def test_every_error_of_the_lake_names_the_missing_extra(with_lake: Environment) -> None:
        assert named_extras(with_lake, NEEDS_MORE_THAN_LAKE) == NEEDS_MORE_THAN_LAKE

    def test_the_demo_runs_without_spark(with_lake: Environment, tmp_path: Path) -> None:
        demo = with_lake.run("skiway", "demo", "--once", "--home", tmp_path / "demo")
        assert demo.returncode == 0, demo.stderr
        assert "needs Spark: make demo SPARK=1" in demo.stdout
        assert "Does fresh snow sell?" in demo.stdout


def named_extras(installed: Environment, needs: dict[str, str]) -> dict[str, str]:
    """The extra that the error of each program names; what else went wrong where there is no such error."""
    script = """
import json, sys
from skiway.foundation.extras import MissingExtra
found = {}
for program in json.loads(sys.argv[1]):
    try:
        exec(program, {})
        found[program] = "no error"
    except MissingExtra as error:
        extra = error.params["extra"]
        found[program] = extra if str(error).endswith(f"pip install 'skiway[{extra}]'") else str(error)
    except Exception as error:
        found[program] = repr(error)
print(json.dumps(found))
"""
    done = installed.run("python", "-c", script, json.dumps(list(needs)))
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _address(server: subprocess.Popen[str], ready: Path) -> str:
    deadline = time.monotonic() + START_S
    while not ready.exists():
        assert server.poll() is None, server.stderr and server.stderr.read()
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.05)
    address: str = json.loads(ready.read_text())["rpc"]
    return address


def _synchronized(installed: Environment, address: str, data: Path) -> str:
    """Mirror a Parquet file, whose statistics need no Spark."""
    data.mkdir()
    return installed.python(f"""
import pyarrow as pa
import pyarrow.parquet as pq
from skiway.client import Metastore

pq.write_table(pa.table({{"id": [1, 2, 3]}}), {str(data / "people.parquet")!r})
with Metastore({address!r}) as lake:
    files = lake.connectors.create("files", kind="parquet", uri={str(data)!r}, catalog="lake", namespace="raw")
    job = lake.jobs.wait(lake.connectors.sync(files))
    assert job.state == "succeeded", job.message
    print([table.name for table in lake.tables("lake.raw")])
""")
