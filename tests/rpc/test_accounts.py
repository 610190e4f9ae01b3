"""An id of another account is answered as one that does not exist, by every method that takes one."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from rpc.requests import REQUESTS, Lake, id_paths, lake, put
from rpc.rpc_server import METHODS, RpcServer
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.storage import ABSENT, Put

CODE = grpc.StatusCode

# Ids that are not looked at, with the reason.
NOT_LOOKED_AT = {
    ("CreateAccount", "account_id"): "the id to give; only the platform can",
    ("CreateView", "spec.base_relations.resource_id"): "names are kept, their ids are not followed",
    ("UpdateView", "spec.base_relations.resource_id"): "names are kept, their ids are not followed",
    **{
        ("ValidateConnector", f"spec.destination.{noun}_id"): "only the upstream is tried"
        for noun in ("catalog", "namespace", "table")
    },
    ("PutTableStats", "stats.table_id"): "overwritten by that of the request",
    ("PutColumnStats", "columns.table_id"): "overwritten by that of the request",
    ("PutFileColumnStats", "files.table_id"): "overwritten by that of the request",
    ("PutFileColumnStats", "files.columns.table_id"): "overwritten by that of the request",
}
CASES = [
    (operation, path) for operation, method in sorted(METHODS.items()) for path in id_paths(method.request.DESCRIPTOR)
]
LOOKED_AT = [(op, path) for op, path in CASES if (op.partition("/")[2], ".".join(path)) not in NOT_LOOKED_AT]
LENIENT = ("Lookup", "ResolveFQ")  # they answer with nothing where there is nothing


def resource(operation: str, path: tuple[str, ...], made: Lake) -> v1.ResourceId:
    """The resource of account `a1` that the field at `path` is about; where its name does not tell, the method's does."""
    about = METHODS[operation].name.lower() if path[-1] == "resource_id" else path[-1]
    about = "namespace" if path[0] == "prefix" else about
    about = "table" if path[:2] == ("inputs", "name") else about
    known = {
        "account": v1.ResourceId(account_id="a1", id="a1", kind=v1.RK_ACCOUNT),
        "connector": v1.ResourceId(account_id="a1", id="k1", kind=v1.RK_CONNECTOR),
        "catalog": made.catalog.resource_id,
        "namespace": made.namespace.resource_id,
        "table": made.table.resource_id,
        "view": made.view.resource_id,
    }
    return next(found for noun, found in known.items() if noun in about)


def foreign(mine: v1.ResourceId) -> v1.ResourceId:
    """The same in account `a2`; of an account, another account."""
    return v1.ResourceId(account_id="a2", id="a2" if mine.kind == v1.RK_ACCOUNT else mine.id, kind=mine.kind)


def with_id(request: Any, path: tuple[str, ...], value: v1.ResourceId) -> Any:
    copy = type(request)()
    copy.CopyFrom(request)
    if path[-1] == "resource_id" and path[0] == "ref":
        copy.ref.Clear()  # a name beside an id is not looked at, or says that the id is not of a catalog
    if "upstream" in path:
        copy.spec.upstream.uri = "file:///data"
        if isinstance(copy, v1.UpdateTableRequest):
            copy.update_mask.paths.append("upstream")
    put(copy, path, value)
    return copy


def test_ids_are_found_in_most_requests():
    assert len(LOOKED_AT) >= 50
    assert {(op.partition("/")[2], ".".join(path)) for op, path in CASES} >= NOT_LOOKED_AT.keys()
    assert ("DirectoryService/ResolveFQTables", ("names", "names", "resource_id")) in LOOKED_AT


@pytest.mark.parametrize(("operation", "path"), LOOKED_AT, ids=[f"{op}-{'.'.join(path)}" for op, path in LOOKED_AT])
def test_an_id_of_another_account_is_one_that_does_not_exist(operation, path, rpc_server: RpcServer):
    rpc_server.factory.account("a2")
    made = lake(rpc_server.factory)
    stats = REQUESTS["TableStatisticsService/PutTableStats"](made)
    assert rpc_server.client("TableStatisticsService/PutTableStats", stats).code is CODE.OK
    rpc_server.factory.stores.pointers.apply([Put(keys.connector("a1", "k1"), "blob", expect=ABSENT)])
    request = REQUESTS[operation](made)
    request = request[0] if isinstance(request, list) else request
    mine = resource(operation, path, made)
    before = list(rpc_server.factory.stores.pointers.scan(""))

    client = rpc_server.client.as_("member")
    answer = client(operation, with_id(request, path, foreign(mine)))
    lenient = METHODS[operation].name.startswith(LENIENT) and path[0] != "prefix"
    if lenient:
        assert answer.code is CODE.OK, answer.text
        assert str(answer.message) in ("", "page {\n}\n")
    else:
        assert (answer.code, answer.error.code) == (CODE.NOT_FOUND, v1.MC_NOT_FOUND), answer.text
    assert list(rpc_server.factory.stores.pointers.scan("")) == before

    found = client(operation, with_id(request, path, mine))
    assert found.code is not CODE.NOT_FOUND, found.text
    if lenient:
        assert found.message.ByteSize() > 2
