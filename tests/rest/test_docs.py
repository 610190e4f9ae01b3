"""The Iceberg REST page matches the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from iceberg_kit.results import excluded
from rest.rest_server import RestServer
from skiway.foundation.doors import MAX_HEADER_LENGTH
from skiway.rest import RestOptions
from skiway.rest.errors import BY_CLASS, BY_KEY, MISSING

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "rest.md").read_text()
REFERENCE = (DOCS / "reference" / "rest.md").read_text()
SUITES = (DOCS / "reference" / "iceberg-suites.md").read_text()
(CLIENT,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_client_example_prints_the_shown_output(rest_server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    rest_server.callers.known["None"] = rest_server.callers.known["anybody"]  # what PyIceberg sends without a token
    exec(CLIENT.replace("http://127.0.0.1:8181/iceberg", rest_server.uri), {})
    assert capsys.readouterr().out in PAGE


def test_every_error_is_on_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| (`.*?`) \|", REFERENCE, re.MULTILINE)
    shown = {(int(status), kind) for status, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)}
    of_changes = {(500, "CommitStateUnknownException"), (503, "ServiceFailureException")}
    assert shown == {*BY_CLASS.values(), *BY_KEY.values(), *((404, kind) for kind in MISSING.values()), *of_changes}


def test_every_excluded_test_is_on_the_page_with_its_reason() -> None:
    rows = re.findall(r"^\| `(\w+Tests)` \| (`.*`) \| (.*) \|$", SUITES, re.MULTILINE)
    shown = {(suite, name, why) for suite, names, why in rows for name in re.findall(r"`(\w+)`", names)}
    listed = {(suite, name, why) for suite, tests in excluded().items() for name, why in tests.items()}
    plural = {(suite, name, why.replace("skips it", "skips them")) for suite, name, why in listed}
    assert shown <= listed | plural
    assert {each[:2] for each in shown} == {each[:2] for each in listed}


def test_numbers_on_the_page_match_the_code() -> None:
    assert f"more than {RestOptions().max_body_bytes // 2**20} MiB" in REFERENCE
    assert f"up to {MAX_HEADER_LENGTH} characters" in PAGE


def test_importing_the_package_loads_no_heavy_library() -> None:
    program = "import sys, skiway.rest; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    )
    assert "skiway.rest" in loaded
    assert loaded & {"boto3", "deltalake", "duckdb", "pyiceberg", "pyspark"} == set()
