"""The codes of errors are explained once, for the command line, the explorer and the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.servers import skiway
from skiway import errors
from skiway.errors import EXPLANATIONS
from skiway.foundation.doors import GRPC_CODES, statuses, table_entry

RPC = Path(__file__).parents[2] / "docs" / "rpc.md"
CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SkiwayError)]


def test_every_code_is_explained() -> None:
    assert set(EXPLANATIONS) == {kind.code for kind in CLASSES}
    for code in EXPLANATIONS:
        found, names = statuses(code)
        kinds = [kind for kind in CLASSES if kind.code == code]
        assert sorted(names) == sorted(kind.__name__ for kind in kinds)
        assert set(found) == {table_entry(GRPC_CODES, kind).name for kind in kinds}


def test_page_lists_the_codes() -> None:
    page = RPC.read_text()
    for code, explanation in EXPLANATIONS.items():
        listed = ", ".join(f"`{status}`" for status in statuses(code)[0])
        assert f"| `{code}` | {listed} | {explanation.meaning} |\n" in page


@pytest.mark.parametrize("code", ["MC_CONFLICT", "conflict"])
def test_code_is_explained(code: str) -> None:
    shown = " ".join(skiway("explain", code).stdout.split())
    explanation = EXPLANATIONS["MC_CONFLICT"]
    assert f"MC_CONFLICT {explanation.meaning}. What to do {explanation.action}." in shown
    assert "gRPC ABORTED or ALREADY_EXISTS" in shown


def test_all_codes_are_listed_and_unknown_ones_refused() -> None:
    assert [line.split()[0] for line in skiway("explain").stdout.splitlines()] == list(EXPLANATIONS)
    refused = skiway("explain", "MC_CONFLCT")
    assert (refused.returncode, refused.stderr) == (
        1,
        "skiway: there is no code MC_CONFLCT; did you mean MC_CONFLICT?\n",
    )
