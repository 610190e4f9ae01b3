"""The page with the matrix of formats is up to date, and every answer has a test or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from formats.feature_matrix import DELTA_UNSUPPORTED, ROWS, Cell, page_with_matrix
from skiway.formats.delta.table import SUPPORTED_FEATURES

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "formats.md"
CELLS = sorted({cell for row in ROWS for cell in row.cells}, key=lambda cell: (cell.test, cell.reason))


def test_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == page_with_matrix(page), "run PYTHONPATH=tests python -m formats.feature_matrix docs/formats.md"


def test_unsupported_delta_features_are_not_supported() -> None:
    assert not set(DELTA_UNSUPPORTED) & set(SUPPORTED_FEATURES)


def test_features_are_listed_once() -> None:
    names = [(row.format, row.feature) for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.test or cell.reason)
def test_answer_has_a_test_or_a_reason(cell: Cell) -> None:
    assert cell.reason or cell.test
    assert cell.test or cell.answer != "yes"
    if cell.test:
        file, _, name = cell.test.partition("::")
        source = (TESTS / file).read_text()
        found = re.search(rf"^((?:@.*\n|    .*\n|\)\n)*)def {name}\(", source, re.MULTILINE)
        assert found, f"{file} has no test {name}"
        assert "skip" not in found[1]
        assert "xfail" not in found[1]
