"""The text of a foreign exception reaches no caller, through whichever door.

An exception that is not of our tree may contain anything: an address, a path, a row of another account.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest

from airport.raw import AIRPORT, Raw, descriptor
from lake.lakes import opened_lake
from rest.rest_server import opened as opened_rest
from rpc.requests import REQUESTS, lake
from rpc.rpc_server import SERVICES, serving
from rpc.rpc_server import opened as opened_rpc
from skiway.airport import CatalogBuilder, Server
from skiway.airport.wire.protocol import encode
from skiway.errors import Internal
from skiway.metastore.resources import namespaces
from skiway.rest.app import ROUTES, matched
from skiway.rpc import Service
from skiway.storage import Stores, open_stores
from skiway.web import Explorer
from skiway.web.pages import PAGES
from skiway.web.visits import Clients

CANARY = "canary-7f3a at db.internal:5432"
FOREIGN = [
    RuntimeError(CANARY),
    OSError(CANARY),
    NotImplementedError(CANARY),
    KeyError(CANARY),
    pa.ArrowInvalid(CANARY),
]
OURS = Internal(CANARY, key="store.failed")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        yield opened


def raising(error: Exception) -> Any:
    def act(*_: Any, **__: Any) -> Any:
        raise error

    return act


def everything_in(error: Any) -> str:
    return f"{error.details()} {error.trailing_metadata()} {error.initial_metadata()}"


@pytest.mark.parametrize("error", [*FOREIGN, OURS], ids=repr)
def test_grpc(stores: Stores, error: Exception) -> None:
    method = "CatalogService/ListCatalogs"
    with opened_rpc(stores, services=serving(method, raising(error))) as house:
        answer = house.client(method)
    assert answer.code is not grpc.StatusCode.OK
    assert "canary" not in f"{answer.text} {answer.headers} {answer.trailers}"


def test_every_method(stores: Stores) -> None:
    def broken(service: Service) -> Service:
        rules = {name: replace(rule, act=raising(FOREIGN[0])) for name, rule in service.rules.items()}
        return replace(service, rules=rules)

    with opened_rpc(stores, services=map(broken, SERVICES)) as house:
        made = lake(house.factory)
        for method, request in REQUESTS.items():
            answer = house.client(method, request(made), x_engine_kind="duckdb", x_engine_version="1.5.5")
            assert answer.code is grpc.StatusCode.INTERNAL, f"{method}: {answer.text}"
            assert "canary" not in f"{answer.text} {answer.headers} {answer.trailers}", method


@pytest.mark.parametrize("error", [*FOREIGN, OURS], ids=repr)
def test_rest(stores: Stores, tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "list_", raising(error))
    with opened_rest(stores, tmp_path) as house:
        answer = httpx.get(f"{house.uri}/v1/lake/namespaces", headers={"authorization": "Bearer anybody"})
    assert answer.status_code >= 400
    assert "canary" not in f"{answer.text} {answer.headers}"
    assert answer.headers["x-correlation-id"] in answer.text


def test_every_route(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(method: str, path: str) -> Any:
        route, names = matched(method, path)
        return replace(route, handler=raising(FOREIGN[0])), names

    monkeypatch.setattr("skiway.rest.app.matched", broken)
    with opened_rest(stores, tmp_path) as house, httpx.Client(base_url=house.uri) as client:
        for route in ROUTES:
            answer = client.request(route.method, re.sub(r"{[\w-]+}", "x", route.path))
            assert answer.status_code == 500, f"{route.endpoint}: {answer.text}"
            assert "canary" not in f"{answer.text} {answer.headers}", route.endpoint


def test_every_page_and_form(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = raising(FOREIGN[0])
    monkeypatch.setattr("skiway.web.app.PAGES", dict.fromkeys(PAGES, broken))
    monkeypatch.setattr(Explorer, "_check_form", lambda *_: None)
    clients, ended = Clients(metastore=broken, airport=broken, location=broken, editor=broken), set[str]()
    app: Any = Explorer(clients, key=lambda: b"k" * 32, ended=ended)  # type: ignore[arg-type]

    async def visited() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://lake") as client:
            for method, kind in PAGES:
                for path in (f"/{kind}", f"/{kind or 'index'}.json"):
                    answer = await client.request(method, path)
                    assert answer.status_code == 500, f"{method} {path}: {answer.text}"
                    assert "canary" not in f"{answer.text} {answer.headers}", f"{method} {path}"

    asyncio.run(visited())


@pytest.mark.parametrize("error", [*FOREIGN, OURS], ids=repr)
@pytest.mark.parametrize("agent", [AIRPORT, ()], ids=["duckdb", "flight"])
def test_airport_on_the_lake(tmp_path: Path, error: Exception, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_lake(tmp_path) as lake:
        monkeypatch.setattr("skiway.lake.catalog.LakeCatalogs.find", raising(error))
        with Raw(lake.location, (*agent, ("authorization", "Bearer writer"))) as raw:
            with pytest.raises(grpc.RpcError) as action:
                raw.action("list_schemas", encode({"catalog_name": "managed"}))
            with pytest.raises(grpc.RpcError) as info:
                raw.unary("GetFlightInfo", descriptor("managed", "s", "t"))
    for failed in (action.value, info.value):
        assert "canary" not in everything_in(failed)
        assert "see the server log, correlation id" in (failed.details() or "")


@pytest.mark.parametrize("error", FOREIGN, ids=repr)
def test_a_library_server(error: Exception) -> None:
    catalog = CatalogBuilder("demo")
    catalog.schema("s").table(schema=pa.schema({"id": pa.int64()}), name="t")(raising(error))
    with Server(catalog.build(), port=0) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        with pytest.raises(grpc.RpcError) as failed:
            list(raw.get(endpoint.ticket.ticket))
    assert "canary" not in everything_in(failed.value)
