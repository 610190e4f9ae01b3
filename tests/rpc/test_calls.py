"""The life of a call: retries, cancellation and limits."""

from __future__ import annotations

import threading
import time

import grpc
import pytest

from metastore.resource_factory import key
from rpc.requests import lake
from rpc.rpc_server import RpcServer, behavior, counted, opened, principal, serving, until
from skiway.errors import AlreadyExists, Conflict, Contention, PreconditionFailed, Unavailable
from skiway.metastore.records.errors import failure
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.request_path import Retries
from skiway.telemetry.metrics import Metrics

CODE = grpc.StatusCode
CREATE = "CatalogService/CreateCatalog"
LIST = "CatalogService/ListCatalogs"


def names(rpc_server: RpcServer) -> list[str]:
    found = catalogs.list_(rpc_server.factory.home, v1.ListCatalogsRequest()).catalogs
    return [catalog.display_name for catalog in found]


def new(name: str, **more) -> v1.CreateCatalogRequest:
    return v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name), **more)


class Failing:
    """Fails the given number of times, then calls the real function."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self, realm, request):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        if isinstance(request, v1.ListCatalogsRequest):
            return catalogs.list_(realm, request)
        return catalogs.create(realm, request)


# -- retries ------------------------------------------------------------------------------------------------------


def test_lost_race_is_retried(stores):
    act = Failing(Contention("lost", key="store.contended"), times=8)
    with opened(stores, services=serving(CREATE, act)) as rpc_server:
        assert rpc_server.client(CREATE, new("lake")).code is CODE.OK
        assert names(rpc_server) == ["lake"]
    assert act.calls == 9
    assert rpc_server.sleeps.taken == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2]


def test_race_lost_repeatedly_is_reported(stores):
    act = Failing(failure(Contention, "store.contended", what="catalog lake"), times=100)
    with opened(stores, services=serving(CREATE, act)) as rpc_server:
        answer = rpc_server.client(CREATE, new("lake"))
    assert act.calls == 9
    assert (answer.code, answer.error.code) == (CODE.ABORTED, v1.MC_ABORT_RETRYABLE)
    assert answer.error.message_key == "store.contended"


@pytest.mark.parametrize(
    "error", [Conflict("x"), AlreadyExists("x"), PreconditionFailed("x"), Unavailable("x"), RuntimeError("x")]
)
def test_other_errors_are_not_retried(error, stores):
    act = Failing(error, times=1)
    with opened(stores, services=serving(CREATE, act)) as rpc_server:
        assert rpc_server.client(CREATE, new("lake")).code is not CODE.OK
    assert (act.calls, rpc_server.sleeps.taken) == (1, [])


def test_reads_are_not_retried(stores):
    act = Failing(Contention("lost"), times=1)
    with opened(stores, services=serving(LIST, act)) as rpc_server:
        assert rpc_server.client(LIST).code is CODE.ABORTED
    assert act.calls == 1


def test_every_retry_gets_the_original_request(stores):
    seen = []

    def act(realm, request):
        seen.append(request.spec.display_name)
        request.spec.display_name += "!"
        raise Contention("lost")

    with opened(stores, services=serving(CREATE, act)) as rpc_server:
        rpc_server.client(CREATE, new("lake"))
    assert seen == ["lake"] * 9


@pytest.mark.parametrize(("random_value", "pauses"), [(0.0, [0.0025, 0.005, 0.1]), (1.0, [0.0075, 0.015, 0.3])])
def test_retry_pauses_have_jitter(random_value, pauses):
    retries = Retries(random=lambda: random_value)
    assert [retries.wait_s(attempt) for attempt in (1, 2, 9)] == pytest.approx(pauses)


@behavior(36)
def test_concurrent_calls_with_one_idempotency_key_create_one_catalog(rpc_server: RpcServer):
    calls = [rpc_server.client.begin(CREATE, new("lake", idempotency=key("k"))) for _ in range(20)]
    answers = [call.result() for call in calls]
    assert len({answer.catalog.resource_id.id for answer in answers}) == 1
    assert names(rpc_server) == ["lake"]


# -- cancelled calls ----------------------------------------------------------------------------------------------


class Gate:
    """An authenticator that waits until the gate is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def authenticate(self, headers):
        self.reached.set()
        assert self.open.wait(200)
        return principal("ada", "catalog.write", "catalog.read")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(strict=True)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_call_cancelled_before_the_write_changes_nothing(stores, gate, metrics):
    with opened(stores, authenticator=gate, metrics=metrics) as rpc_server:
        call = rpc_server.client.begin(CREATE, new("lake"))
        assert gate.reached.wait(200)
        call.cancel()
        until(lambda: not rpc_server.active)
        gate.open.set()
    assert call.code() is CODE.CANCELLED
    assert names(rpc_server) == []
    assert counted(metrics) == {"CreateCatalog": "CANCELLED"}


def test_call_with_deadline_exceeded_before_the_write_changes_nothing(stores, gate, metrics):
    with opened(stores, authenticator=gate, metrics=metrics) as rpc_server:
        call = rpc_server.client.begin(CREATE, new("lake"), timeout=1)
        assert gate.reached.wait(200)
        deadline = time.time() + 1  # the server counts from when the request arrived, so its deadline is not later
        assert call.code() is CODE.DEADLINE_EXCEEDED
        until(lambda: not rpc_server.active)
        until(lambda: time.time() > deadline)
        gate.open.set()
    assert names(rpc_server) == []
    assert counted(metrics) == {"CreateCatalog": "DEADLINE_EXCEEDED"}


def test_call_that_timed_out_while_queued_changes_nothing(stores, gate):
    with opened(stores, authenticator=gate, workers=1) as rpc_server:
        first = rpc_server.client.begin(LIST)
        assert gate.reached.wait(200)
        second = rpc_server.client.begin(CREATE, new("lake"), timeout=0.5)
        assert second.code() is CODE.DEADLINE_EXCEEDED
        gate.open.set()
        assert first.code() is CODE.OK
    assert names(rpc_server) == []


def test_lost_race_is_not_retried_for_a_cancelled_call(stores):
    act = Failing(Contention("lost"), times=100)
    sleeping, wake = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        sleeping.set()
        assert wake.wait(200)

    with opened(stores, services=serving(CREATE, act), retries=Retries(sleep=sleep)) as rpc_server:
        call = rpc_server.client.begin(CREATE, new("lake"))
        assert sleeping.wait(200)
        call.cancel()
        until(lambda: not rpc_server.active)
        wake.set()
    assert act.calls == 1


# -- size ---------------------------------------------------------------------------------------------------------


def test_too_large_message_is_rejected_and_the_next_is_served(stores):
    with opened(stores, options=(("grpc.max_receive_message_length", 10_000),)) as rpc_server:
        large = new("lake")
        large.spec.description = "x" * 20_000
        assert rpc_server.client(CREATE, large).code is CODE.RESOURCE_EXHAUSTED
        assert names(rpc_server) == []
        assert rpc_server.client(CREATE, new("lake")).code is CODE.OK


# -- accounts -----------------------------------------------------------------------------------------------------


def test_every_principal_is_confined_to_its_own_account(rpc_server: RpcServer):
    rpc_server.factory.account("a2")
    made = lake(rpc_server.factory)
    assert rpc_server.client.as_("stranger")(LIST).message.catalogs == []
    request = v1.GetTableRequest(table_id=made.table.resource_id)
    assert rpc_server.client("TableService/GetTable", request).code is CODE.OK
    assert rpc_server.client.as_("stranger")("TableService/GetTable", request).code is CODE.NOT_FOUND
