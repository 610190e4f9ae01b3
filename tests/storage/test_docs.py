"""The documentation of the stores is accurate."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import skiway.storage
from skiway.storage import calls, opening

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.mark.parametrize("module", [skiway.storage, calls], ids=lambda module: module.__name__)
def test_docstring_examples_pass(module):
    failures, tried = doctest.testmod(module)
    assert (failures, tried > 0) == (0, True)


def test_every_backend_is_on_the_page():
    page = PAGE.read_text()
    for backends in opening.BUILT_IN.values():
        assert [scheme for scheme in backends if f"`{scheme}:" not in page] == []
