"""A call is current only in the thread or task that serves it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from skiway.telemetry.context import CallContext, call_facts, current_call, serving


def test_no_call_is_current_outside_of_a_call():
    assert current_call() is None


def test_call_is_current_inside_and_the_previous_one_afterwards():
    outer, inner = CallContext("outer"), CallContext("inner")
    with serving(outer) as entered:
        assert entered is outer
        with serving(inner):
            assert current_call() is inner
        assert current_call() is outer
    assert current_call() is None


def test_error_ends_the_call_too():
    with pytest.raises(KeyError), serving(CallContext("a")):
        raise KeyError
    assert current_call() is None


def test_threads_do_not_see_each_others_calls():
    barrier = Barrier(8)

    def serve(number: int) -> list[str]:
        with serving(CallContext(f"call-{number}")):
            seen = []
            for _ in range(50):
                barrier.wait(200)
                call = current_call()
                assert call is not None
                seen.append(call.correlation_id)
            return seen

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(serve, range(8)))
    assert answers == [[f"call-{number}"] * 50 for number in range(8)]


def test_thread_started_inside_a_call_has_no_call():
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


def test_credentials_do_not_appear_in_repr_or_facts():
    call = CallContext("a", subject="ada", authorization={"authorization": "Bearer shh"})
    assert call.authorization["authorization"] == "Bearer shh"
    assert "shh" not in repr(call) + str(call) + str(call_facts(call))


def test_facts_omit_unknown_values():
    assert call_facts(CallContext("a", account_id="acme")) == {"correlation_id": "a", "account_id": "acme"}
    assert call_facts(None) == {}


def test_context_module_imports_only_the_standard_library():
    program = "import sys, skiway.telemetry.context; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    customization = {"sitecustomize", "usercustomize"}
    allowed = set(sys.stdlib_module_names) | {"skiway", "__main__"} | customization
    assert {name for name in loaded - allowed if not name.startswith("_")} == set()
