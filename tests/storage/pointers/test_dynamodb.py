"""Pointers in DynamoDB: what only DynamoDB does."""

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


class Stumbling:
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


def stumbling_store(client, home, response, *, times):
    stumbling = Stumbling(client, response, times=times)
    numbers = iter(range(100))
    return stumbling, DynamoPointerStore(
        stumbling, table_of(home), ids=lambda: f"id-{next(numbers)}", randomness=lambda: 0.0
    )


def test_a_batch_has_at_most_a_hundred_operations(home):
    with (
        home.pointers() as store,
        pytest.raises(LimitExceeded, match=r"batch of 101 operations exceeds the limit of 100"),
    ):
        store.apply([Check(f"/{number}", expect=ABSENT) for number in range(101)])


def test_a_batch_has_at_most_four_megabytes(home):
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
def test_a_disturbed_transaction_is_tried_again_as_the_same_request(client, home, response):
    stumbling, store = stumbling_store(client, home, response, times=2)
    store.compare_and_set("/a", "blob", expect=ABSENT)
    assert store.get("/a").version == 1
    assert stumbling.tokens == ["id-0"] * 3
    store.compare_and_set("/b", "blob", expect=ABSENT)
    assert stumbling.tokens[-1] == "id-1"


def test_a_transaction_disturbed_again_and_again_is_contention(client, home):
    response = failure("TransactionCanceledException", reasons=["TransactionConflict"])
    stumbling, store = stumbling_store(client, home, response, times=100)
    store._pause = lambda state: 0.0
    with pytest.raises(Contention, match="too many concurrent writes to the same keys"):
        store.compare_and_set("/a", "blob", expect=ABSENT)
    assert len(stumbling.tokens) == ATTEMPTS


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
def test_other_failures_are_not_tried_again(client, home, response, error):
    stumbling, store = stumbling_store(client, home, response, times=1)
    with pytest.raises(error):
        store.compare_and_set("/a", "blob", expect=ABSENT)
    assert len(stumbling.tokens) == 1


def test_a_lost_answer_is_unavailable_not_a_conflict(client, home):
    store = DynamoPointerStore(client, table_of(home))

    class Mute(Stumbling):
        def transact_write_items(self, **request):
            self.client.transact_write_items(**request)
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1")

    store._client = Mute(client, {}, times=1)
    with pytest.raises(Unavailable, match="check the region, credentials and network"):
        store.compare_and_set("/a", "blob", expect=ABSENT)
    assert store.get("/a").version == 1


def test_the_conflict_names_the_pointer_and_what_was_found(home):
    with home.pointers() as store:
        store.compare_and_set("/b", "blob", expect=ABSENT)
        with pytest.raises(Conflict) as caught:
            store.apply([Put("/a", "blob", expect=ABSENT), Put("/b", "blob", expect=7)])
    assert caught.value.params == {"pointer": "'/b'", "expected": "7", "found": "1"}


def test_what_expires_carries_the_attribute_that_dynamodb_sweeps_by(client, home, clock):
    with home.pointers(clock=clock) as store:
        store.compare_and_set("/a", "blob", expect=ABSENT, expires_at=clock.later(0.5))
        store.compare_and_set("/b", "blob", expect=ABSENT)
    items = {item["sk"]["B"]: item for item in client.scan(TableName=table_of(home))["Items"]}
    sweep = client.describe_time_to_live(TableName=table_of(home))["TimeToLiveDescription"]
    assert sweep == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    assert int(items[b"/a"]["ttl"]["N"]) >= clock.later(0.5).timestamp()
    assert int(items[b"/a"]["ttl"]["N"]) < clock.later(0.5).timestamp() + 1
    assert "ttl" not in items[b"/b"]


def test_purging_trusts_the_table_rather_than_its_index(client, home, clock):
    """The index lags behind: what it shows as expired may have been set anew."""

    class Lagging(Stumbling):
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


def test_a_missing_table_is_made_only_if_it_may_be(home):
    with pytest.raises(PreconditionFailed, match="does not exist; create it, or open it with create=true"):
        open_pointers(f"{home.url}&create=false", options=home.options)
    home.pointers().close()
    open_pointers(f"{home.url}&create=false", options=home.options).close()


def test_nobody_at_the_endpoint_is_unavailable():
    with pytest.raises(Unavailable, match="check the region, credentials and network"):
        open_pointers("dynamodb://table?region=us-east-1&endpoint=http://127.0.0.1:1", options=AWS)
