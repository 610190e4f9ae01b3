"""The current request in other threads, and in unit tests.

A context variable holds the current request, and a new thread starts without one. `submit` and `with_request` pass it on:

    with ThreadPoolExecutor() as pool:
        files = [submit(pool, read, path) for path in paths]

`acting_as` sets it, to test a table without a server.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from skiway.airport.request import Request, entered

__all__ = ["acting_as", "submit", "with_request"]

P = ParamSpec("P")
T = TypeVar("T")


def with_request(function: Callable[P, T]) -> Callable[P, T]:
    """`function` with the request that is current now, in whichever thread it runs.

    For `Thread(target=with_request(work))` and `executor.map(with_request(work), items)`. It may be called several times,
    also at once.
    """
    context = contextvars.copy_context()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)  # a context cannot be entered twice at once

    return run


def submit(executor: Executor, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Submit a call of `function` to a thread pool, where `current_request()` returns the request that is current now."""
    return executor.submit(with_request(function), *args, **kwargs)


@contextmanager
def acting_as(
    identity: str = "",
    *,
    transaction_id: str = "",
    catalog: str = "",
    token: str | None = None,
    claims: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Request]:
    """Run a block as if a server called it for `identity`, in a transaction or without one: for unit tests of tables.

    Code in the block gets this request from `current_request()`. Read the rows of a scan within the block, because a
    generator runs only when it is read.
    """
    request = Request(
        identity=identity,
        transaction_id=transaction_id,
        catalog=catalog,
        token=token,
        claims=dict(claims or {}),
        metadata=tuple((name.lower(), value) for name, value in (headers or {}).items()),
    )
    with entered(request):
        yield request
