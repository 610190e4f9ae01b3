"""The codes of errors are explained once, for the command line, the explorer and the documentation."""

from __future__ import annotations

import json

import pytest

from runtime.servers import skiway
from skiway import errors
from skiway.foundation.doors import EXPLANATIONS, GRPC_CODES, statuses, table_entry

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SkiwayError)]


def test_every_code_is_explained() -> None:
    assert set(EXPLANATIONS) == {kind.code for kind in CLASSES}
    for code in EXPLANATIONS:
        found, names = statuses(code)
        kinds = [kind for kind in CLASSES if kind.code == code]
        assert sorted(names) == sorted(kind.__name__ for kind in kinds)
        assert set(found) == {table_entry(GRPC_CODES, kind).name for kind in kinds}


@pytest.mark.parametrize("code", ["MC_CONFLICT", "conflict"])
def test_code_is_explained(code: str) -> None:
    explanation = EXPLANATIONS["MC_CONFLICT"]
    found = json.loads(skiway("explain", code, "-o", "json").stdout)
    assert found["what_to_do"] == explanation.action
    assert found["grpc"] == "ABORTED or ALREADY_EXISTS"
    assert explanation.meaning in " ".join(skiway("explain", code).stdout.split())


def test_all_codes_are_listed_and_unknown_ones_refused() -> None:
    assert [line.split()[0] for line in skiway("explain").stdout.splitlines()[1:]] == list(EXPLANATIONS)
    refused = skiway("explain", "MC_CONFLCT")
    assert (refused.returncode, refused.stderr) == (
        1,
        "skiway: there is no code MC_CONFLCT; did you mean MC_CONFLICT?\n",
    )
