"""Lost records in the listings of the command line."""

from __future__ import annotations

import json
import sys

import pytest

from metastore.mirrors import connector
from rpc.rpc_server import RpcServer
from skiway.cli import main
from skiway.client import Metastore
from skiway.metastore.records import keys

LOST = "its record is missing in the blob store"


@pytest.fixture
def run(rpc_server: RpcServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command against the server, and return its exit code and output."""

    def run_(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["skiway", *arguments, "--server", rpc_server.address, "--token", "everybody"])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_


def lose(server: RpcServer, key: str) -> None:
    pointer = server.factory.stores.pointers.get(key)
    assert pointer is not None
    server.factory.stores.blobs.delete(pointer.blob_uri)


def test_commands_list_what_is_damaged(rpc_server: RpcServer, run):
    factory = rpc_server.factory
    lost = factory.table("lost", namespace=factory.namespace("sales", catalog=factory.catalog("lake")))
    factory.table("good")
    lose(rpc_server, keys.table("a1", lost.resource_id.id))
    code, out, err = run("tables", "list", "lake.sales")
    assert (code, err) == (0, "1 of 2 records are damaged: run skiway check on the server\n")
    assert [line.split()[0] for line in out.splitlines()] == ["name", "lake.sales.good", "lake.sales.lost"]
    assert LOST in out.splitlines()[2]
    code, out, _ = run("tables", "list", "-o", "json")
    assert {each["name"]: each["damage"] for each in json.loads(out)} == {
        "lake.sales.good": None,
        "lake.sales.lost": LOST,
    }


@pytest.mark.parametrize("noun", ["catalogs", "namespaces", "connectors", "jobs", "snapshots"])
def test_every_listing_shows_damage(rpc_server: RpcServer, run, noun: str):
    factory = rpc_server.factory
    lake = factory.catalog("lake")
    sales = factory.namespace("sales", catalog=lake)
    table = factory.table("people", namespace=sales)
    for number in (1, 2):
        factory.snapshot(table, number, at=number)
    files = connector(factory, "files")
    with Metastore(rpc_server.address, token="everybody") as client:
        job = client.connectors.sync("files")
    lost = {
        "catalogs": keys.catalog("a1", lake.resource_id.id),
        "namespaces": keys.namespace("a1", sales.resource_id.id),
        "connectors": keys.connector("a1", files.resource_id.id),
        "jobs": keys.job("a1", job.id),
        "snapshots": keys.snapshot("a1", table.resource_id.id, 1),
    }
    lose(rpc_server, lost[noun])
    arguments = ("lake.sales.people",) if noun == "snapshots" else ()
    code, out, _ = run(noun, "list", *arguments, "-o", "json")
    assert code == 0
    assert LOST in [each["damage"] for each in json.loads(out)]
    code, out, err = run(noun, "list", *arguments)
    assert (code, "damaged" in err, LOST in out) == (0, True, True)
