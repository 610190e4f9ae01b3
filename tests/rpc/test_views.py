"""Views over gRPC: the server decides who their definer is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpc.requests import lake
from rpc.rpc_server import RpcServer
from skiway.client.metastore import Metastore
from skiway.model import v1


@pytest.fixture
def db(rpc_server: RpcServer) -> Iterator[Metastore]:
    lake(rpc_server.factory)
    with Metastore(rpc_server.address, token="everybody") as client:
        yield client


def test_caller_is_the_definer_and_cannot_name_another(db: Metastore) -> None:
    made = db.views.create("lake.sales.mine", sql="SELECT 1 AS a", rights="definer")
    assert (made.rights, made.message.definer.subject) == (
        "definer",
        db.views.get("lake.sales.mine").message.definer.subject,
    )
    assert made.message.definer.subject
    assert not made.message.definer.roles
    changed = db.views.update("lake.sales.mine", rights="invoker")
    assert (changed.rights, changed.message.HasField("definer")) == ("invoker", False)
    assert "definer" not in v1.ViewSpec.DESCRIPTOR.fields_by_name
    other = db.views.create("lake.sales.other", sql="SELECT 1 AS a")
    assert (other.rights, other.message.HasField("definer")) == ("invoker", False)
