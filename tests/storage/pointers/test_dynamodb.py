"""Pointers in DynamoDB: behavior specific to DynamoDB."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from skiway.errors import Conflict, Contention, Internal, LimitExceeded, PreconditionFailed, Unavailable
from skiway.storage import ABSENT, Check, Put, open_pointers
from skiway.storage.pointers.dynamodb import ATTEMPTS, DynamoPointerStore
from storage.homes import AWS, pointer_home


@pytest.fixture
def client(server):
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=server("aws"), **AWS)
    yield client
    client.close()


@pytest.fixture
def home(tmp_path, server):
    return pointer_home("dynamodb", tmp_path, server)


def table_of(home):
    return home.url.removeprefix("dynamodb://").partition("?")[0]


def failure(code, *, reasons=(), status=400):
    return {
        "Error": {"Code": code, "Message": "says DynamoDB"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        "CancellationReasons": [{"Code": reason} for reason in reasons],
    }


class FailingClient:
    """A client whose transactions fail a number of times before they reach DynamoDB."""

    def __init__(self, client, response, *, times):
        self.client, self.response, self.times, self.tokens = client, response, times, []

    def __getattr__(self, name):
        return getattr(self.client, name)

    def transact_write_items(self, **request):
        self.tokens.append(request["ClientRequestToken"])
        if len(self.tokens) > self.times:
            return self.client.transact_write_items(**request)
        error = self.client.exceptions.from_code(self.response["Error"]["Code"])
        raise error(self.response, "TransactWriteItems")


def failing_store(client, home, response, *, times):
    failing = FailingClient(client, response, times=times)
    numbers = iter(range(100))
    return failing, DynamoPointerStore(
        failing, table_of(home), ids=lambda: f"id-{next(numbers)}", randomness=lambda: 0.0
    )


def test_batch_has_at_most_a_hundred_operations(home):
    with (
        home.pointers() as store,
        pytest.raises(LimitExceeded, match=r"batch of 101 operations exceeds the limit of 100"),
    ):
        store.apply([Check(f"/{number}", expect=ABSENT) for number in range(101)])


def test_batch_has_at_most_four_megabytes(home):
    with home.pointers() as store, pytest.raises(LimitExceeded, match="exceeds DynamoDB's limit of 4000000"):
        store.apply([Put(f"/{number}", "x" * 60_000, expect=ABSENT) for number in range(70)])


@pytest.mark.parametrize(
    "response",
    [
        failure("TransactionCanceledException", reasons=["TransactionConflict"]),
        failure("TransactionCanceledException", reasons=["ThrottlingError"]),
        failure("TransactionInProgressException"),
        failure("ThrottlingException"),
    ],
    ids=str,
)
def test_failed_transaction_is_retried_with_the_same_request_token(client, home, response):
    failing, store = failing_store(client, home, response, times=2)
    store.compare_and_set("/a", "blob", expect=ABSENT)
    assert store.get("/a").version == 1
    assert failing.tokens == ["id-0"] * 3
    store.compare_and_set("/b", "blob", expect=ABSENT)
    assert failing.tokens[-1] == "id-1"


def test_repeatedly_failed_transaction_is_contention(client, home):
    response = failure("TransactionCanceledException", reasons=["TransactionConflict"])
    failing, store = failing_store(client, home, response, times=100)
    store._pause = lambda state: 0.0
    with pytest.raises(Contention, match="too many concurrent writes to the same keys"):
        store.compare_and_set("/a", "blob", expect=ABSENT)
    assert len(failing.tokens) == ATTEMPTS


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (failure("TransactionCanceledException", reasons=["ValidationError"]), Internal),
        (failure("ValidationException"), Internal),
        (failure("InternalServerError", status=500), Unavailable),
        (failure("AccessDeniedException"), Unavailable),
    ],
    ids=str,
)
def test_other_failures_are_not_retried(client, home, response, error):
    failing, store = failing_store(client, home, response, times=1)
    with pytest.raises(error):
        store.compare_and_set("/a", "blob", expect=ABSENT)
    assert len(failing.tokens) == 1


def test_lost_response_is_unavailable_and_not_a_conflict(client, home):
    store = DynamoPointerStore(client, table_of(home))

    class LosingResponses(FailingClient):
        def transact_write_items(self, **request):
            self.client.transact_write_items(**request)
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1")

    store._client = LosingResponses(client, {}, times=1)
    with pytest.raises(Unavailable, match="check the region, credentials and network"):
        store.compare_and_set("/a", "blob", expect=ABSENT)
    assert store.get("/a").version == 1


def test_conflict_names_the_pointer_and_the_versions(home):
    with home.pointers() as store:
        store.compare_and_set("/b", "blob", expect=ABSENT)
        with pytest.raises(Conflict) as caught:
            store.apply([Put("/a", "blob", expect=ABSENT), Put("/b", "blob", expect=7)])
    assert caught.value.params == {"pointer": "'/b'", "expected": "7", "found": "1"}


def test_expiring_pointer_has_the_ttl_attribute_of_dynamodb(client, home, clock):
    with home.pointers(clock=clock) as store:
        store.compare_and_set("/a", "blob", expect=ABSENT, expires_at=clock.later(0.5))
        store.compare_and_set("/b", "blob", expect=ABSENT)
    items = {item["sk"]["B"]: item for item in client.scan(TableName=table_of(home))["Items"]}
    time_to_live = client.describe_time_to_live(TableName=table_of(home))["TimeToLiveDescription"]
    assert time_to_live == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    assert int(items[b"/a"]["ttl"]["N"]) >= clock.later(0.5).timestamp()
    assert int(items[b"/a"]["ttl"]["N"]) < clock.later(0.5).timestamp() + 1
    assert "ttl" not in items[b"/b"]


def test_purging_checks_the_table_and_not_only_its_index(client, home, clock):
    """The index lags behind: a pointer that it shows as expired may have been set again."""

    class Lagging(FailingClient):
        def query(self, **request):
            answer = client.query(**request)
            store.compare_and_set("/a", "anew", expect=ABSENT, expires_at=clock.later(10))
            return answer

    store = DynamoPointerStore(client, table_of(home), clock=clock)
    store.compare_and_set("/a", "old", expect=ABSENT, expires_at=clock.later(1))
    store.compare_and_set("/b", "old", expect=ABSENT, expires_at=clock.later(1))
    clock.advance(1)
    assert DynamoPointerStore(Lagging(client, {}, times=0), table_of(home), clock=clock).purge_expired() == 1
    assert store.get("/a").blob_uri == "anew"


def test_missing_table_is_created_only_if_allowed(home):
    with pytest.raises(PreconditionFailed, match="does not exist; create it, or open it with create=true"):
        open_pointers(f"{home.url}&create=false", options=home.options)
    home.pointers().close()
    open_pointers(f"{home.url}&create=false", options=home.options).close()


def test_unreachable_endpoint_is_unavailable():
    with pytest.raises(Unavailable, match="check the region, credentials and network"):
        open_pointers("dynamodb://table?region=us-east-1&endpoint=http://127.0.0.1:1", options=AWS)
