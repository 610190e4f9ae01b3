"""Fuzzing itself: it finds planted faults of all kinds, a seed repeats a run, and findings can be stored and repeated."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from fuzz.__main__ import TARGETS as NAMES
from fuzz.arrow_values import any_batch, any_type
from fuzz.cases import Finding, corpus, from_json, to_json
from fuzz.fuzzing import fuzz, report
from fuzz.mutation import changed_bytes, changed_message, changed_value, repacked, unpacked
from fuzz.target import Case, Fault, Target, fault_of
from fuzz.targets import TARGETS
from fuzz.worker import case_of, opened
from skiway.model import v1


class Planted(Target):
    """Fails in a different way at certain cases."""

    name = "planted"

    def open(self) -> None:
        self.number = 0

    def case(self, chance: Random) -> Case:
        return {"random": chance.randbytes(4)}

    def run(self, case: Case) -> str:
        self.number += 1
        match self.number:
            case 3:
                raise Fault("KeyError in planted", "the traceback")
            case 5:
                assert len(bytearray(600 << 20))
            case 7:
                os.kill(os.getpid(), signal.SIGSEGV)
        return "OK"


class Hanging(Planted):
    name = "hanging"

    def run(self, case: Case) -> str:
        time.sleep(600)
        return "OK"


@pytest.mark.full
def test_faults_crashes_and_wasted_memory_are_found() -> None:
    result = fuzz("fuzz.test_fuzzing:Planted", seed=1, seconds=60, limit=9)
    assert set(result.findings) == {"KeyError in planted", "memory: OK", "crash: SIGSEGV"}
    assert result.numbers == {"KeyError in planted": 2, "memory: OK": 4, "crash: SIGSEGV": 6}
    assert result.cases == 9, "it continues after the crash"
    printed = report([result], seed=1)
    assert "crash: SIGSEGV (1 times)" in printed
    assert "--seed 1 --case 6'" in printed


@pytest.mark.full
def test_hangs_are_found() -> None:
    result = fuzz("fuzz.test_fuzzing:Hanging", seed=1, seconds=60, limit=1, hang_s=0.5)
    assert set(result.findings) == {"hang"}
    assert result.findings["hang"].cases[0]["random"]


@pytest.mark.parametrize("name", ["filters", "bodies", "parquet"])
def test_the_same_seed_gives_the_same_cases(name: str, tmp_path: Path) -> None:
    def cases(seed: int) -> list[Case]:
        with opened(name, tmp_path) as target:
            return [case_of(target, seed, number) for number in range(20)]

    assert cases(1) == cases(1)
    assert cases(1) != cases(2)


def test_every_target_is_part_of_the_command() -> None:
    assert tuple(TARGETS) == NAMES


def test_finding_survives_its_file(tmp_path: Path) -> None:
    finding = Finding("flight", "KeyError in x.y: 'a'", [{"messages": [b"\xff\0"], "headers": [["a", "b"]]}])
    path = finding.save(tmp_path)
    assert corpus(tmp_path) == [path]
    assert Finding.load(path) == finding
    assert from_json(to_json(finding.cases)) == finding.cases


def test_mutations_change_their_input() -> None:
    """Most of them: a change may have no effect."""
    chance = Random(1)
    message = v1.CreateTableRequest(spec=v1.TableSpec(display_name="t", schema_json="{}"))
    value = {"a": [1, {"b": "text"}], "c": None}
    cases: list[tuple[Any, Any]] = [
        (changed_bytes, b"some bytes"),
        (changed_value, value),
        (changed_message, message),
    ]
    for change, given in cases:
        results = [change(given, chance) for _ in range(50)]
        assert sum(result != given for result in results) > 40
    assert unpacked(repacked({"descriptor": b"\xff\0", "name": "x"})) == {"descriptor": b"\xff\0", "name": "x"}


def test_error_of_an_author_is_no_fault() -> None:
    with pytest.raises(KeyError) as raised:
        _fail_as_an_author()
    assert fault_of(raised.value, authors=["test_fuzzing.py"]) is None
    found = fault_of(raised.value)
    assert found is not None
    assert found.signature == "KeyError in test_fuzzing._fail_as_an_author"


def _fail_as_an_author() -> None:
    raise KeyError("x")


def test_random_arrays_are_valid() -> None:
    for seed in range(500):
        chance = Random(seed)
        kind = any_type(chance, depth=3)
        array = any_batch(pa.schema([pa.field("a", kind)]), chance).column(0)
        array.validate(full=True)
        assert array.type == kind
