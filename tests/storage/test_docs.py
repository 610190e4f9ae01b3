"""The storage page is accurate."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import skiway.storage
from skiway.storage import calls, opening

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_print_what_the_page_shows(code, printed, capsys):
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_page_has_examples_with_output():
    assert sum(bool(printed) for _, printed in EXAMPLES) == 2


@pytest.mark.parametrize("module", [skiway.storage, calls], ids=lambda module: module.__name__)
def test_docstring_examples_pass(module):
    failures, tried = doctest.testmod(module)
    assert (failures, tried > 0) == (0, True)


def test_every_backend_and_every_call_is_on_the_page():
    page = PAGE.read_text()
    for group, backends in opening.BUILT_IN.items():
        assert group in page
        assert [scheme for scheme in backends if f"`{scheme}:" not in page] == []
    for store in (skiway.storage.PointerStore, skiway.storage.BlobStore):
        names = [name for name, each in vars(store).items() if callable(each) and not name.startswith("_")]
        assert [name for name in names if name != "close" and f"`{name}(" not in page] == []
