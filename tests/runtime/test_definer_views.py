"""A table in the place of one that a view with definer rights reads is refused at the doors that run SQL for callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest

from airport.raw import Raw
from flightsql.test_attacks import planned, read
from runtime.servers import Server, started
from skiway.client import AirportClient, Metastore
from skiway.mcp.server import LakeTools
from skiway.presentation.results import OpenClients
from web.explorers import token_of

QUERY = "SELECT id FROM lake.shared.v ORDER BY id"
ROWS = [[1], [2]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, str]]:
    """A server, and the tokens of a definer and of a caller who may change what the view reads."""
    home = tmp_path_factory.mktemp("definers") / "home"
    ada, eve = token_of(home, "ada", "administrator"), token_of(home, "eve", "member")
    with started(home, "--set", "auth.mode=token") as server:
        yield server, ada, eve


def over_flight_sql(server: Server, token: str) -> Any:
    with Raw(server.addresses["airport"], ()) as raw:
        return [list(row.values()) for row in read(raw, planned(raw, QUERY, token), token)]


def over_mcp(server: Server, token: str) -> Any:
    tools = LakeTools(OpenClients(f"grpc://{server.address}"), lambda _: token)
    return tools.run_sql(QUERY, cast(Any, None), "lake")["rows"]


def over_explorer(server: Server, token: str) -> Any:
    address, headers = server.addresses["http"], {"authorization": f"Bearer {token}"}
    found = httpx.get(f"{address}/sql.json", params={"sql": QUERY, "catalog": "lake"}, headers=headers).json()
    if found["error"]:
        raise RuntimeError(found["error"])
    return found["result"]["rows"]


@pytest.mark.parametrize("run", [over_flight_sql, over_mcp, over_explorer])
def test_replaced_table_is_refused(lake: tuple[Server, str, str], run: Callable[[Server, str], Any]) -> None:
    server, ada, eve = lake
    address = server.addresses["airport"]
    with (
        AirportClient(address, "lake", token=ada) as definer,
        AirportClient(address, "lake", token=eve) as attacker,
        Metastore(server.address, token=ada) as metastore,
    ):
        rows = pa.table({"id": [1, 2]})
        for schema in ("open", "shared"):
            definer.create_schema(schema)
        definer.create_table_as("open.t", rows)
        view = {"rights": "definer"}
        definer.call("skiway.create_view", "shared.v", "SELECT id FROM open.t", named=view).read_all()
        metastore.grants.add("lake.open", "user:eve", "manage")
        metastore.grants.add("lake.shared", "user:eve", "read")
        assert run(server, eve) == ROWS
        attacker.reload()
        attacker.drop_table("open.t")
        attacker.create_table_as("open.t", pa.table({"id": [3]}))
        for token in (eve, ada):
            with pytest.raises(Exception, match=r"open\.t.* was replaced.*'ada', must save the view again"):
                run(server, token)
        named = {**view, "replace": True}
        definer.call("skiway.create_view", "shared.v", "SELECT id FROM open.t", named=named).read_all()
        assert run(server, eve) == [[3]]
        definer.reload()
        definer.call("skiway.drop_view", "shared.v").read_all()
        definer.drop_table("open.t")
        for schema in ("open", "shared"):
            definer.drop_schema(schema)
