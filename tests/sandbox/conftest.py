"""Processes that run queries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skiway.sandbox.queries import Queries, QueryProcess


@pytest.fixture(scope="module")
def queries() -> Iterator[Queries]:
    made = Queries(memory_limit="300MB", timeout_s=60, workers=2, threads=1)
    yield made
    made.close()


@pytest.fixture
def process(queries: Queries) -> Iterator[QueryProcess]:
    found = queries.start()
    yield found
    found.close()
