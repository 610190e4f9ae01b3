"""The MCP server, with the official client: over standard input and output, and over HTTP.

A server with tokens serves a table on which a policy hides rows and values of all but the owner.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import mcp
import pyarrow as pa
import pytest
from httpx2 import AsyncClient
from mcp import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from formats.odd_tables import write_delta
from runtime.servers import Server, add_swapped_columns, command, environment, launch, skiway, started
from skiway.client import AirportClient, Metastore
from skiway.mcp.server import serve_http
from web.explorers import token_of

CANARY = "canary-91c2"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("region", pa.string()), pa.field("email", pa.string())])
TOOLS = {"search_tables", "describe_table", "sample_rows", "run_sql", "explain_sql"}


@dataclass
class Lake:
    server: Server
    tokens: dict[str, str]
    audit: Path

    @property
    def address(self) -> str:
        return self.server.addresses["rpc"]

    def records(self) -> list[dict[str, Any]]:
        files = self.audit.glob("*.log")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    home = tmp_path_factory.mktemp("mcp") / "home"
    roles = {"ada": "administrator", "reader": "default", "eve": "member"}
    tokens = {name: token_of(home, name, role) for name, role in roles.items()}
    audit = home.parent / "audit"
    readable = ("--set", f"sources.local_roots={home.parent / 'sources'}")
    with started(home, "--set", "auth.mode=token", "--set", f"audit.directory={audit}", *readable) as server:
        with AirportClient(server.addresses["airport"], "lake", token=tokens["ada"]) as owner:
            owner.create_schema("sales")
            owner.create_table("sales.people", SCHEMA)
            rows = [(i, "EU" if i % 2 else "US", f"{CANARY}-{i}@example.com") for i in range(10)]
            owner.insert("sales.people", pa.table(list(zip(*rows, strict=True)), schema=SCHEMA))
            owner.call("skiway.create_view", "sales.europe", "SELECT id FROM people WHERE region = 'EU'").read_all()
        with Metastore(server.addresses["rpc"], token=tokens["ada"]) as metastore:
            people = metastore.tables.get("lake.sales.people")
            metastore.policies.create("eu", to=["user:reader"], on=[people], row_filter="region = 'EU'")
            metastore.policies.create("email", to=["user:reader"], on=[people], mask="null", columns=["email"])
        yield Lake(server, tokens, audit)


@contextmanager
def http_server(lake: Lake) -> Iterator[str]:
    """`skiway mcp --http`, and its URL."""
    with launch("mcp", "--http", "127.0.0.1:0", "--server", lake.address, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.terminate()
            process.communicate(timeout=20)


@pytest.fixture(scope="module")
def url(lake: Lake) -> Iterator[str]:
    with http_server(lake) as found:
        yield found


Use = Callable[[mcp.Client], Awaitable[Any]]


def over_stdio(lake: Lake, who: str, use: Use) -> Any:
    program, *arguments = command("mcp", "--server", lake.address)
    parameters = StdioServerParameters(command=program, args=arguments, env=environment(SKIWAY_TOKEN=lake.tokens[who]))

    async def run() -> Any:
        async with mcp.Client(parameters) as client:
            return await use(client)

    return asyncio.run(run())


def over_http(url: str, token: str, use: Use) -> Any:
    async def run() -> Any:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with (
            AsyncClient(headers=headers, timeout=60) as web,
            mcp.Client(streamable_http_client(url, http_client=web)) as client,
        ):
            return await use(client)

    return asyncio.run(run())


async def called(client: mcp.Client, tool: str, **arguments: Any) -> Any:
    """The result of a tool, or the text of its error."""
    found = await client.call_tool(tool, arguments)
    if found.is_error:
        return f"error: {found.content[0].text}"
    assert found.structured_content is not None
    return found.structured_content.get("result", found.structured_content)


async def everything(client: mcp.Client) -> dict[str, Any]:
    """What each tool and resource shows of the table."""
    resource = await client.read_resource("skiway://lake/sales/people")
    listing = await client.read_resource("skiway://lake")
    return {
        "tools": {each.name: each for each in (await client.list_tools()).tools},
        "templates": [each.uri_template for each in (await client.list_resource_templates()).resource_templates],
        "search": await called(client, "search_tables", text="people email"),
        "describe": await called(client, "describe_table", name="lake.sales.people"),
        "view": await called(client, "describe_table", name="lake.sales.europe"),
        "sample": await called(client, "sample_rows", name="lake.sales.people", rows=3),
        "sql": await called(client, "run_sql", sql="SELECT id, email FROM lake.sales.people ORDER BY id", max_rows=4),
        "explain": await called(client, "explain_sql", sql="SELECT count(*) FROM lake.sales.people WHERE id > 3"),
        "resource": json.loads(resource.contents[0].text),
        "listing": json.loads(listing.contents[0].text),
    }


def check_owner(found: dict[str, Any]) -> None:
    assert found["tools"].keys() == TOOLS
    assert all(each.annotations.read_only_hint for each in found["tools"].values())
    assert found["templates"] == ["skiway://{catalog}", "skiway://{catalog}/{schema}/{table}"]
    assert (found["search"][0]["name"], found["search"][0]["found_in"]) == ("lake.sales.people", "column email")
    table = found["describe"]
    assert (table["kind"], table["rows"], [each["name"] for each in table["columns"]]) == ("table", 10, SCHEMA.names)
    assert table["columns"][0]["statistics"]["max"] == "9"
    assert found["view"]["kind"] == "view"
    assert "region = 'EU'" in str(found["view"]["sql"])
    assert (len(found["sample"]["rows"]), [each["name"] for each in found["sample"]["columns"]]) == (3, SCHEMA.names)
    assert found["sql"]["rows"][0] == [0, f"{CANARY}-0@example.com"]
    assert (len(found["sql"]["rows"]), found["sql"]["is_cut"]) == (4, True)
    assert "PARQUET" in found["explain"].upper()
    assert found["resource"] == table
    assert [each["name"] for each in found["listing"]] == ["lake.sales.europe", "lake.sales.people"]


def test_stdio(lake: Lake) -> None:
    check_owner(over_stdio(lake, "ada", everything))


def test_http(lake: Lake, url: str) -> None:
    check_owner(over_http(url, lake.tokens["ada"], everything))


def test_clients_can_connect_as_soon_as_the_url_is_known(lake: Lake) -> None:
    def ready(url: str) -> None:
        location = urlsplit(url)
        socket.create_connection((location.hostname, location.port), timeout=5).close()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve_http(lake.address, "127.0.0.1:0", ready=ready)


def test_policies_hold(lake: Lake, url: str) -> None:
    found = over_http(url, lake.tokens["reader"], everything)
    assert CANARY not in str(found)
    assert found["sql"]["rows"] == [[1, None], [3, None], [5, None], [7, None]]
    assert all(row[1] == "EU" for row in found["sample"]["rows"])


def test_table_that_cannot_be_read_has_its_reason(lake: Lake, url: str) -> None:
    """Callers whom policies restrict get it without the location."""
    folder = lake.audit.parent / "sources"
    column = {"name": "v", "type": "char(3)", "nullable": True, "metadata": {}}
    write_delta(folder / "bad", pa.table({"id": [1]}), also=(column,))
    with Metastore(lake.address, token=lake.tokens["ada"]) as metastore:
        catalog = metastore.catalogs.create("odd")
        filesystem = {"delta.source": "filesystem"}
        metastore.connectors.create("odd", kind="delta", uri=str(folder), catalog="odd", properties=filesystem)
        metastore.connectors.capture("odd")
        metastore.policies.create("odd", to=["user:reader"], on=[catalog], row_filter="true")
    reason = "has a column of type char(3), which is not supported; drop the column, or copy the table"

    async def describe(client: mcp.Client) -> Any:
        return await called(client, "describe_table", name="odd.odd.bad")

    assert over_http(url, lake.tokens["ada"], describe)["problem"] == f"table 'bad' at '{folder}/bad' {reason}"
    restricted = over_http(url, lake.tokens["reader"], describe)
    assert restricted["problem"] == f"table 'bad' {reason}"
    assert str(folder) not in str(restricted)


def test_callers_without_rights_see_nothing(lake: Lake, url: str) -> None:
    async def attack(client: mcp.Client) -> list[Any]:
        return [
            await called(client, "search_tables", text="people"),
            await called(client, "describe_table", name="lake.sales.people"),
            await called(client, "sample_rows", name="lake.sales.people"),
            await called(client, "run_sql", sql="SELECT * FROM lake.sales.people"),
            await called(client, "run_sql", sql="SELECT * FROM lake.sales.people", catalog="lake"),
            await called(client, "explain_sql", sql="SELECT * FROM lake.sales.people", catalog="lake"),
        ]

    errors = over_http(url, lake.tokens["eve"], attack)
    assert all("permission" in each for each in errors), errors
    assert not [each for each in errors if "email" in each]
    for token in ("", "unknown"):  # never the token of whoever started the server
        results = over_http(url, token, attack)
        assert all("token" in str(each) and str(each).startswith("error: ") for each in results), results


def test_nothing_can_be_changed(lake: Lake, url: str) -> None:
    async def attack(client: mcp.Client) -> list[str]:
        statements = [
            "DELETE FROM lake.sales.people",
            "CREATE TABLE lake.sales.x AS SELECT 1",
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT 1; DROP TABLE lake.sales.people",
        ]
        tools = ("run_sql", "explain_sql")
        return [await called(client, tool, sql=sql) for sql in statements for tool in tools]

    for error in over_http(url, lake.tokens["ada"], attack):
        assert re.search("only SELECT can run here|cannot be used here|expected one query", error), error


def test_errors_say_what_to_do(lake: Lake, url: str) -> None:
    async def ask(client: mcp.Client) -> list[Any]:
        return [
            await called(client, "describe_table", name="people"),
            await called(client, "describe_table", name="lake.sales.unknown"),
            await called(client, "sample_rows", name="lake.sales.people", rows=0),
            await called(client, "run_sql", sql="SELEC 1"),
            await called(
                client, "run_sql", sql="SELECT repeat('x', 5000) AS a, 'nan'::DOUBLE AS b, DATE '2024-01-01' AS c"
            ),
        ]

    shape, missing, none, syntax, long = over_http(url, lake.tokens["ada"], ask)
    assert "catalog.namespace.table" in shape
    assert "unknown" in missing
    assert "request between 1 and 1000" in none
    assert "syntax error" in syntax
    ((text, number, day),) = long["rows"]
    assert (len(text), number, day, long["is_cut"]) == (1000, "nan", "2024-01-01", True)


def test_huge_input_is_rejected_before_work_begins(lake: Lake, url: str) -> None:
    many, long = "SELECT 1 IN (" + "1," * 30_000 + "1)", "x" * 3_000_000
    attacks: list[tuple[str, dict[str, Any], str]] = [
        ("run_sql", {"sql": many}, "names, constants and symbols, the maximum is 50000"),
        ("explain_sql", {"sql": many}, "names, constants and symbols, the maximum is 50000"),
        ("run_sql", {"sql": f"SELECT '{long}'"}, "characters, the maximum is 1048576"),
        ("run_sql", {"sql": "SELECT " + "(" * 30_000 + "1" + ")" * 30_000}, "the maximum is 50000"),
        ("run_sql", {"sql": "SELECT 1", "catalog": long}, "the name has 3000000 characters"),
        ("describe_table", {"name": f"lake.sales.{long}"}, "characters, the maximum is 10000"),
        ("sample_rows", {"name": "a." * 500_000 + "b"}, "characters, the maximum is 10000"),
        ("describe_table", {"name": '"' * 500_000}, "characters, the maximum is 10000"),
        ("search_tables", {"text": "x " * 1_000_000}, "search for up to 1000 characters"),
    ]

    async def attack(client: mcp.Client) -> list[str]:
        return [await called(client, tool, **arguments) for tool, arguments, _ in attacks]

    started = time.monotonic()
    found = over_http(url, lake.tokens["ada"], attack)
    assert time.monotonic() - started < 20  # for nine calls
    for error, (_, _, reason) in zip(found, attacks, strict=True):
        assert reason in error
        assert len(error) < 500
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    for body, status in ((b" " * 20_000_000, 413), (b"[" * 1_000_000 + b"]" * 1_000_000, 400)):
        assert httpx.post(url, content=body, headers=headers).status_code == status


def test_calls_are_audited_with_the_caller(lake: Lake, url: str) -> None:
    over_http(url, lake.tokens["reader"], lambda client: called(client, "run_sql", sql="SELECT 12345 AS n"))
    audited = [each for each in lake.records() if each.get("subject") == "reader" and each.get("rows_out") == 1]
    assert "Airport/table_function" in {each["operation"] for each in audited}


def test_pages_of_other_origins_are_rejected(url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    for header in ({"host": "evil.example:80"}, {"origin": "http://evil.example"}):
        answer = httpx.post(url, json=message, headers=accepted | header)
        assert answer.status_code in (403, 421), answer.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http", "0.0.0.0:0"], "0.0.0.0 is not a loopback address"),
        (["--http", "nowhere"], "is not an address: write HOST:PORT"),
        (["--http", "127.0.0.1:0", "--token", "x"], "clients send their own tokens"),
        (["--account", "other"], "MCP uses the account of the token"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    result = skiway("mcp", *arguments)
    assert result.returncode == 1
    assert message in result.stderr


def test_statistics_have_the_present_names_of_columns(lake: Lake, url: str) -> None:
    token = lake.tokens["ada"]
    with (
        AirportClient(lake.server.addresses["airport"], "lake", token=token) as owner,
        Metastore(lake.address, token=token) as metastore,
    ):
        add_swapped_columns(owner, metastore, "renames.t")
        table = over_http(url, token, lambda client: called(client, "describe_table", name="lake.renames.t"))
        owner.drop_table("renames.t")
        owner.drop_schema("renames")
    found = {each["name"]: (each["statistics"]["min"], each["statistics"]["max"]) for each in table["columns"]}
    assert found == {"a": ("100", "200"), "b": ("1", "2")}
