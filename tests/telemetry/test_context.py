"""A call is current where it is served, and nowhere else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from skiway.telemetry.context import CallContext, call_facts, current_call, serving


def test_outside_of_a_call_there_is_none():
    assert current_call() is None


def test_inside_it_is_current_and_afterwards_the_one_before():
    outer, inner = CallContext("outer"), CallContext("inner")
    with serving(outer) as given:
        assert given is outer
        with serving(inner):
            assert current_call() is inner
        assert current_call() is outer
    assert current_call() is None


def test_an_error_ends_it_too():
    with pytest.raises(KeyError), serving(CallContext("a")):
        raise KeyError
    assert current_call() is None


def test_threads_do_not_see_each_others_calls():
    barrier = Barrier(8)

    def serve(number: int) -> list[str]:
        with serving(CallContext(f"call-{number}")):
            seen = []
            for _ in range(50):
                barrier.wait(10)
                call = current_call()
                assert call is not None
                seen.append(call.correlation_id)
            return seen

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(serve, range(8)))
    assert answers == [[f"call-{number}"] * 50 for number in range(8)]


def test_a_thread_started_inside_begins_without_a_call():
    with serving(CallContext("a")), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_call).result() is None


def test_tasks_do_not_see_each_others_calls():
    async def serve(number: int) -> str:
        with serving(CallContext(str(number))):
            await asyncio.sleep(0)
            call = current_call()
            assert call is not None
            return call.correlation_id

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*map(serve, range(20)))

    assert asyncio.run(all_at_once()) == [str(number) for number in range(20)]


def test_credentials_are_carried_but_not_shown():
    call = CallContext("a", subject="ada", authorization={"authorization": "Bearer shh"})
    assert call.authorization["authorization"] == "Bearer shh"
    assert "shh" not in repr(call) + str(call) + str(call_facts(call))


def test_facts_leave_out_what_is_not_known():
    assert call_facts(CallContext("a", account_id="acme")) == {"correlation_id": "a", "account_id": "acme"}
    assert call_facts(None) == {}


def test_the_context_alone_loads_nothing_but_the_standard_library():
    program = "import sys, skiway.telemetry.context; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    of_the_machine = {"sitecustomize", "usercustomize"}
    allowed = set(sys.stdlib_module_names) | {"skiway", "__main__"} | of_the_machine
    assert {name for name in loaded - allowed if not name.startswith("_")} == set()
