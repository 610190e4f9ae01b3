"""What fuzzing once found does not happen again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.cases import Finding, corpus
from fuzz.target import Fault
from fuzz.worker import opened, outcome


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", corpus(), ids=lambda file: file.stem)
def test_finding_is_fixed(file: Path, tmp_path: Path) -> None:
    finding = Finding.load(file)
    with opened(finding.target, tmp_path) as target:
        faults = [each for case in finding.cases if isinstance(each := outcome(target, case), Fault)]
    assert not faults, faults[0]
