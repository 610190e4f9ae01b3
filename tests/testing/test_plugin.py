"""The pytest plugin: a served catalog, clients and recordings in the tests of authors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from skiway.airport import BearerAuth, Catalog, CatalogBuilder, current_request
from skiway.errors import Internal
from skiway.testing import plugin

AUTHOR_TESTS = """
import pyarrow as pa
import pytest
from skiway.airport import CatalogBuilder, Server
from skiway.client import AirportClient


@pytest.fixture
def airport_catalog():
    demo = CatalogBuilder("demo")
    demo.schema("s").table(schema=pa.schema({"id": pa.int64()}), name="t")(lambda scan: {"id": [1, 2]})
    return demo.build()


def test_client(airport_client):
    assert airport_client.scan("s.t").read_all()["id"].to_pylist() == [1, 2]


def test_server(airport_server, airport_connect):
    with AirportClient(airport_server.location, "demo") as db:
        assert db.count("s.t") == airport_connect(airport_server).count("s.t") == 2
"""

STOPPED_SERVER = """
import pytest
from skiway.airport import CatalogBuilder
from skiway.client import AirportClient
from skiway.errors import Unavailable


@pytest.fixture
def airport_catalog():
    return CatalogBuilder("demo").build()


@pytest.fixture
def connect_after_the_test():
    yield
    with pytest.raises(Unavailable), AirportClient(LOCATIONS[0], "demo", timeout_s=5) as db:
        db.schemas()
    print("the server has stopped")


LOCATIONS = []


def test_server_runs(connect_after_the_test, airport_server):
    LOCATIONS.append(airport_server.location)
    with AirportClient(airport_server.location, "demo") as db:
        assert db.schemas() == []
"""


@pytest.fixture
def airport_catalog() -> Catalog:
    demo = CatalogBuilder("demo")
    folder = demo.schema("s")
    folder.table(schema=pa.schema({"who": pa.string()}), name="me")(lambda scan: [{"who": current_request().identity}])

    @folder.table(schema=pa.schema({"id": pa.int64()}))
    def broken(scan: Any) -> None:
        raise KeyError("out of ink")

    return demo.build()


def test_served_catalog_has_a_client(airport_client: Any, airport_server: Any) -> None:
    assert airport_client.catalog == "demo"
    assert airport_client.scan("s.me").read_all().to_pylist() == [{"who": ""}]
    assert airport_client.location == airport_server.location


def test_servers_with_options_have_clients_with_tokens(
    airport_catalog: Any, airport_serve: Any, airport_connect: Any
) -> None:
    server = airport_serve(airport_catalog, auth=BearerAuth({"t1": "ada"}.get))
    ada = airport_connect(server, "demo", token="t1")
    assert ada.scan("s.me").read_all().to_pylist() == [{"who": "ada"}]


def test_text_of_an_unexpected_exception_reaches_the_test(airport_client: Any) -> None:
    with pytest.raises(Internal, match="out of ink"):
        airport_client.scan("s.broken").read_all()


def test_recordings_are_complete(airport_recordings: Any) -> None:
    assert airport_recordings.columns.startswith("i8 TINYINT, i16 SMALLINT")
    first = airport_recordings.filters[0]
    assert (first.predicate, first.filter.columns, first.column_ids) == ("i32 = 5", {"i32"}, (2, 15))
    assert len(airport_recordings.filters) > 160
    statements = airport_recordings.conversations
    assert len({each.session for each in statements}) > 1
    calls = [call for each in statements for call in each.calls]
    assert {call.name for call in calls} >= {"list_schemas", "endpoints", "DoGet", "DoExchange", "create_table"}
    assert all(call.requests and call.header("airport-user-agent") for call in calls if call.method == "DoAction")


def run(folder: Path, tests: str, *options: str) -> str:
    (folder / "test_author.py").write_text(tests)
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *options], check=False, capture_output=True, cwd=folder, text=True
    )
    return done.stdout + done.stderr


def test_tests_of_authors_use_the_fixtures(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, AUTHOR_TESTS)


def test_server_stops_at_the_end_of_the_test(tmp_path: Path) -> None:
    printed = run(tmp_path, STOPPED_SERVER, "-s")
    assert "the server has stopped" in printed
    assert "1 passed" in printed


def test_missing_catalog_is_explained(tmp_path: Path) -> None:
    printed = run(tmp_path, "def test_client(airport_client): ...")
    assert "define a fixture called airport_catalog that returns your catalog" in printed


def test_plugin_is_loaded_without_importing_the_library() -> None:
    program = "import sys, skiway.testing.plugin; print({'pyarrow', 'grpc', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_examples_in_the_documentation_pass(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python test\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert page.count("```python") == len(examples) == 3
    assert "5 passed" in run(tmp_path, "\n".join(examples))


def test_every_fixture_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    fixtures = [name for name, value in vars(plugin).items() if type(value).__name__ == "FixtureFunctionDefinition"]
    assert len(fixtures) > 2
    assert [name for name in fixtures if f"| `{name}` |" not in page] == []
