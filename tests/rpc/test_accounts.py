"""Every method that takes an id treats one of another account as nonexistent."""

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

# Ids that are not resolved, with the reason.
NOT_RESOLVED = {
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
RESOLVED = [(op, path) for op, path in CASES if (op.partition("/")[2], ".".join(path)) not in NOT_RESOLVED]
LENIENT = ("Lookup", "ResolveFQ")  # they return an empty result if nothing exists


def resource(operation: str, path: tuple[str, ...], sample: Lake) -> v1.ResourceId:
    """The resource of account `a1` that the field at `path` refers to, derived from the name of the field or the method."""
    about = METHODS[operation].name.lower() if path[-1] == "resource_id" else path[-1]
    about = "namespace" if path[0] == "prefix" else about
    about = "table" if path[:2] == ("inputs", "name") or path == ("object_id",) else about
    about = "table" if path[-1] == "objects" else about
    known = {
        "account": v1.ResourceId(account_id="a1", id="a1", kind=v1.RK_ACCOUNT),
        "connector": v1.ResourceId(account_id="a1", id="k1", kind=v1.RK_CONNECTOR),
        "catalog": sample.catalog.resource_id,
        "namespace": sample.namespace.resource_id,
        "table": sample.table.resource_id,
        "view": sample.view.resource_id,
        "policy": sample.policy.resource_id,
        "rule": sample.rule.resource_id,
        "webhook": sample.webhook.resource_id,
        "pipeline": sample.pipeline.resource_id,
    }
    return next(found for noun, found in known.items() if noun in about)


def foreign(mine: v1.ResourceId) -> v1.ResourceId:
    """The same resource in account `a2`; for an account, another account."""
    return v1.ResourceId(account_id="a2", id="a2" if mine.kind == v1.RK_ACCOUNT else mine.id, kind=mine.kind)


def with_id(request: Any, path: tuple[str, ...], value: v1.ResourceId) -> Any:
    copy = type(request)()
    copy.CopyFrom(request)
    if path[-1] == "resource_id" and path[0] == "ref":
        copy.ref.Clear()  # a name next to an id is ignored, or implies that the id is not that of a catalog
    if "upstream" in path:
        copy.spec.upstream.uri = "file:///data"
        if isinstance(copy, v1.UpdateTableRequest):
            copy.update_mask.paths.append("upstream")
    put(copy, path, value)
    return copy


def test_most_requests_contain_ids():
    assert len(RESOLVED) >= 50
    assert {(op.partition("/")[2], ".".join(path)) for op, path in CASES} >= NOT_RESOLVED.keys()
    assert ("DirectoryService/ResolveFQTables", ("names", "names", "resource_id")) in RESOLVED


@pytest.mark.parametrize(("operation", "path"), RESOLVED, ids=[f"{op}-{'.'.join(path)}" for op, path in RESOLVED])
def test_id_of_another_account_does_not_exist(operation, path, rpc_server: RpcServer):
    rpc_server.factory.account("a2")
    sample = lake(rpc_server.factory, transaction_of="member")
    stats = REQUESTS["TableStatisticsService/PutTableStats"](sample)
    assert rpc_server.client("TableStatisticsService/PutTableStats", stats).code is CODE.OK
    rpc_server.factory.stores.pointers.apply([Put(keys.connector("a1", "k1"), "blob", expect=ABSENT)])
    request = REQUESTS[operation](sample)
    request = request[0] if isinstance(request, list) else request
    mine = resource(operation, path, sample)
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
