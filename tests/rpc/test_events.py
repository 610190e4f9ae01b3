"""Every method that changes something emits an event, and the feed can be read and watched over the network."""

from __future__ import annotations

import time

import grpc
import pytest

from rpc.requests import REQUESTS, lake
from rpc.rpc_server import METHODS, RpcServer, principal
from skiway.metastore import grants, policies
from skiway.model import v1

CODE = grpc.StatusCode
WITHOUT_EVENTS = {
    "QueryService/BeginQuery": "queries change nothing",
    "QueryService/RenewQuery": "queries change nothing",
    "QueryService/EndQuery": "queries change nothing",
    "QueryService/FetchScanBundle": "queries change nothing",
    "WebhookService/RedeliverEvents": "the delivery of events has none",
    "QualityService/CheckRules": "the status of the rule does not change",
    "TransactionService/BeginTransaction": "nothing is visible before the commit",
    "TransactionService/AppendRows": "nothing is visible before the commit",
    "TransactionService/AbortTransaction": "nothing was visible",
}
CHANGING = sorted(name for name, method in METHODS.items() if method.rule.changes)
FIRST = {
    "GrantService/RevokeGrant": "GrantService/AddGrant",
    "TransactionService/CommitTransaction": "TransactionService/AppendRows",
}
"""What must be called before, so that there is something to change."""


def stored_events(rpc_server: RpcServer) -> int:
    """How many events there are, with and without a number: whoever creates a webhook numbers those before it."""
    pointers = rpc_server.factory.stores.pointers
    return pointers.count("/events/pending/") + pointers.count("/events/feed/")


@pytest.mark.parametrize("operation", CHANGING)
def test_method_that_changes_something_emits_an_event(operation: str, rpc_server: RpcServer) -> None:
    rpc_server.factory.account("empty")
    sample = lake(rpc_server.factory)
    client = rpc_server.client.as_("platform") if operation.startswith("AccountService") else rpc_server.client
    if operation in FIRST:
        assert client(FIRST[operation], REQUESTS[FIRST[operation]](sample)).code is CODE.OK
    before = stored_events(rpc_server)
    answer = client(operation, REQUESTS[operation](sample))
    assert answer.code is CODE.OK, answer.text
    assert (stored_events(rpc_server) > before) == (operation not in WITHOUT_EVENTS)


def test_exceptions_are_methods() -> None:
    assert set(WITHOUT_EVENTS) <= set(CHANGING)


def test_feed_names_the_caller_and_continues_at_the_cursor(rpc_server: RpcServer) -> None:
    lake(rpc_server.factory)
    first = rpc_server.client("EventService/ListEvents", v1.ListEventsRequest()).message
    spec = v1.CatalogSpec(display_name="new")
    rpc_server.client.as_("member")("CatalogService/CreateCatalog", v1.CreateCatalogRequest(spec=spec))
    second = rpc_server.client("EventService/ListEvents", v1.ListEventsRequest(after=first.cursor)).message
    assert [(each.kind, each.action, each.name, each.caller) for each in second.events] == [
        ("catalog", "created", "new", "member")
    ]


def test_stream_waits_for_events(rpc_server: RpcServer) -> None:
    lake(rpc_server.factory)
    cursor = rpc_server.client("EventService/ListEvents", v1.ListEventsRequest()).message.cursor
    call = rpc_server.client.begin("EventService/WatchEvents", v1.WatchEventsRequest(after=cursor, wait_seconds=20))
    responses = iter(call._call)
    assert list(next(responses).events) == []
    rpc_server.factory.catalog("new")
    found = next(event for response in responses for event in response.events)
    assert (found.kind, found.name, found.sequence) == ("catalog", "new", cursor + 1)
    call._call.cancel()


@pytest.mark.parametrize("change", ["token", "roles", "grant", "policy"])
def test_open_stream_ends_when_the_caller_loses_rights(rpc_server: RpcServer, change: str) -> None:
    sample = lake(rpc_server.factory)
    home, callers = rpc_server.factory.home, rpc_server.callers
    callers.add(principal("temporary", *(() if change == "grant" else ("catalog.read", "table.read"))))
    for on in (sample.catalog.resource_id, sample.namespace.resource_id) if change == "grant" else ():
        grants.add(home, v1.AddGrantRequest(object_id=on, grantee="user:temporary", privilege=v1.PV_READ))
    client = rpc_server.client.as_("temporary")
    call = client.begin("EventService/WatchEvents", v1.WatchEventsRequest(wait_seconds=60))
    responses = iter(call._call)
    next(responses)
    if change == "token":
        callers.forget("temporary")
    elif change == "roles":
        callers.add(principal("temporary", "catalog.read"))
    elif change == "grant":
        grants.revoke(home, v1.RevokeGrantRequest(object_id=sample.catalog.resource_id, grantee="user:temporary"))
    else:
        spec = v1.PolicySpec(
            display_name="p",
            subjects=["user:temporary"],
            objects=[sample.catalog.resource_id],
            row_filter=v1.PolicyFilter(predicate="1 = 2"),
        )
        policies.calls(lambda *_: []).create(home, v1.CreatePolicyRequest(spec=spec))
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as ended:
        for _ in responses:
            pass
    expected = CODE.UNAUTHENTICATED if change == "token" else CODE.PERMISSION_DENIED
    assert (ended.value.code(), time.monotonic() - began < 5) == (expected, True)


def test_other_account_sees_nothing(rpc_server: RpcServer) -> None:
    lake(rpc_server.factory)
    answer = rpc_server.client.as_("stranger")("EventService/ListEvents", v1.ListEventsRequest())
    assert (answer.code, len(answer.message.events)) == (CODE.OK, 0)


@pytest.mark.parametrize(("after", "key"), [(-1, "field.invalid"), (10**6, "events.after")])
def test_invalid_position_is_rejected(rpc_server: RpcServer, after: int, key: str) -> None:
    for operation, request in (
        ("EventService/ListEvents", v1.ListEventsRequest(after=after)),
        ("EventService/WatchEvents", v1.WatchEventsRequest(after=after)),
    ):
        answer = rpc_server.client(operation, request)
        assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, key)


def test_readers_see_no_events_of_grants_policies_and_connectors(rpc_server: RpcServer) -> None:
    lake(rpc_server.factory)
    by_caller = {
        caller: {
            event.kind
            for event in rpc_server.client.as_(caller)("EventService/ListEvents", v1.ListEventsRequest()).message.events
        }
        for caller in ("everybody", "reader")
    }
    assert by_caller["everybody"] - by_caller["reader"] == {"connector", "job", "pipeline", "policy", "webhook"}
    assert {"catalog", "namespace", "table", "view"} <= by_caller["reader"]
