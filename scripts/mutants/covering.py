"""A pytest plugin that records which tests run which lines, and how long they take.

`COVERED_FILES` are patterns of the files to watch. The result is written to `COVERED_REPORT` as JSON:
{"seconds": {test: seconds}, "lines": {file: {line: [tests]}}}; lines that run on import belong to the test "".
Only tests that pass are in it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

__all__ = ["pytest_runtest_logreport", "pytest_runtest_protocol", "pytest_sessionfinish"]

_coverage = coverage.Coverage(data_file=None, include=os.environ["COVERED_FILES"].split(os.pathsep), config_file=False)
_coverage.start()
_seconds: dict[str, float] = {}
_unusable: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _coverage.switch_context(item.nodeid)
    started = time.monotonic()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = round(time.monotonic() - started, 3)
        _coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _unusable.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _coverage.stop()
    data = _coverage.get_data()
    lines = {}
    for file in data.measured_files():
        by_line = data.contexts_by_lineno(file).items()
        lines[os.path.relpath(file)] = {line: sorted(set(tests) - _unusable) for line, tests in by_line}
    seconds = {test: taken for test, taken in _seconds.items() if test not in _unusable}
    report = {"seconds": seconds, "lines": lines, "unusable": sorted(_unusable)}
    Path(os.environ["COVERED_REPORT"]).write_text(json.dumps(report))
