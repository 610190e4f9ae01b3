"""The current request in threads that a scan starts, and in unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest

from skiway.airport import (
    BearerAuth,
    CatalogBuilder,
    ScanOptions,
    Server,
    Table,
    acting_as,
    current_request,
    submit,
    with_request,
)
from skiway.client import AirportClient

ROWS = pa.schema({"identity": pa.string()})


def whoami(*_: object) -> str:
    return current_request().identity


def submitted() -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return [submit(pool, whoami).result(), *pool.map(with_request(whoami), range(3))]


def in_plain_threads() -> list[str]:
    found: list[str] = []

    def ask() -> None:
        found.append(whoami())

    threads = [Thread(target=with_request(ask)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("threads", [submitted, in_plain_threads])
@pytest.mark.parametrize("lazy", [False, True], ids=["at once", "in a generator"])
def test_threads_of_a_scan_know_its_request(threads: Any, lazy: bool) -> None:
    demo = CatalogBuilder("demo")

    def people(scan: ScanOptions) -> Any:
        if not lazy:
            return pa.table({"identity": threads()}, ROWS)
        return (pa.record_batch({"identity": threads()}) for _ in range(2))

    demo.schema("s").table(schema=ROWS, name="people")(people)
    server = Server(demo.build(), port=0, auth=BearerAuth({"t1": "ada", "t2": "grace"}.get))
    with server, AirportClient(server.location, "demo", token="t1") as ada:
        assert set(ada.scan("s.people").read_all()["identity"].to_pylist()) == {"ada"}
        with AirportClient(server.location, "demo", token="t2") as grace:
            assert set(grace.scan("s.people").read_all()["identity"].to_pylist()) == {"grace"}


def test_one_function_runs_in_several_threads_at_once() -> None:
    both = Barrier(2, timeout=200)

    def meet(_: int) -> str:
        both.wait()
        return whoami()

    with acting_as("ada"), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(with_request(meet), range(2))) == ["ada", "ada"]


def test_submit_passes_arguments_results_and_errors() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert submit(pool, max, 1, 2, key=lambda n: -n).result() == 1
        with pytest.raises(ZeroDivisionError):
            submit(pool, divmod, 1, 0).result()


class Mine(Table):
    name, schema = "mine", pa.schema({"identity": pa.string(), "transaction": pa.string()})

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        request = current_request()
        yield pa.record_batch({"identity": [request.identity], "transaction": [request.transaction_id]})


def test_table_runs_as_a_caller_in_a_transaction() -> None:
    with acting_as("ada", transaction_id="t-1") as request:
        assert [batch.to_pylist() for batch in Mine().scan(ScanOptions())] == [
            [{"identity": "ada", "transaction": "t-1"}]
        ]
        assert current_request() is request
    assert current_request().identity == ""


def test_a_caller_has_claims_headers_and_a_catalog() -> None:
    with acting_as(
        "ada", catalog="demo", token="t1", claims={"role": "admin"}, headers={"X-Tenant": "north"}
    ) as request:
        assert (request.catalog, request.token, request.claims) == ("demo", "t1", {"role": "admin"})
        assert request.header("x-tenant") == "north"
        assert request.is_active()


def test_callers_can_be_nested_and_end_after_an_error() -> None:
    with acting_as("ada"):
        with acting_as("grace"):
            assert whoami() == "grace"
        assert whoami() == "ada"
        with pytest.raises(ZeroDivisionError), acting_as("grace"):
            divmod(1, 0)
        assert whoami() == "ada"
