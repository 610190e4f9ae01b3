"""Impossible times, and too many items, are rejected wherever they are in a request."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.errors import InvalidArgument, LimitExceeded
from skiway.model import v1
from skiway.rpc.methods import MAX_ITEMS, check_lists, check_times

TIMES = [Timestamp(nanos=-1), Timestamp(nanos=10**9), Timestamp(seconds=2**62), Timestamp(seconds=-(2**62))]
DURATIONS = [Duration(seconds=1, nanos=-1), Duration(seconds=2**62), Duration(nanos=2**31 - 1)]


def with_time(time: Timestamp) -> list[tuple[str, Message]]:
    return [
        ("snapshot.as_of", v1.GetTableRequest(snapshot=v1.SnapshotRef(as_of=time))),
        ("spec.upstream_created_at", v1.CreateSnapshotRequest(spec=v1.SnapshotSpec(upstream_created_at=time))),
        (
            "inputs.snapshot.as_of",
            v1.BeginQueryRequest(inputs=[v1.QueryInput(), v1.QueryInput(snapshot=v1.SnapshotRef(as_of=time))]),
        ),
    ]


@pytest.mark.parametrize("time", TIMES, ids=str)
def test_impossible_times_are_rejected(time: Timestamp) -> None:
    for field, request in with_time(time):
        with pytest.raises(InvalidArgument, match="is invalid: use a time of the years 1 to 9999") as refused:
            check_times(request)
        assert (refused.value.key, refused.value.params["field"]) == ("field.invalid", field)


@pytest.mark.parametrize("duration", DURATIONS, ids=str)
def test_impossible_durations_are_rejected(duration: Duration) -> None:
    policy = v1.ConnectorPolicy(interval=duration)
    request = v1.CreateConnectorRequest(spec=v1.ConnectorSpec(policy=policy))
    with pytest.raises(InvalidArgument) as refused:
        check_times(request)
    assert refused.value.params["field"] == "spec.policy.interval"


@pytest.mark.parametrize(
    "time", [Timestamp(), Timestamp(seconds=-1, nanos=5), Timestamp(seconds=253402300799)], ids=str
)
def test_possible_times_pass(time: Timestamp) -> None:
    for _, request in with_time(time):
        check_times(request)
    check_times(v1.ListCatalogsRequest())


def test_items_of_all_lists_are_counted() -> None:
    names = [v1.NameRef(path=["a", "b"]) for _ in range(MAX_ITEMS // 3)]
    check_lists(v1.ResolveFQTablesRequest(names=v1.NameRefs(names=names)))
    names.append(v1.NameRef(path=["a", "b"]))
    with pytest.raises(LimitExceeded, match=f"more than {MAX_ITEMS} items"):
        check_lists(v1.ResolveFQTablesRequest(names=v1.NameRefs(names=names)))
    properties = {str(number): "" for number in range(MAX_ITEMS + 1)}
    with pytest.raises(LimitExceeded, match="properties"):
        check_lists(v1.CreateTableRequest(spec=v1.TableSpec(properties=properties)))
