"""The page about managed tables matches the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from skiway.formats.iceberg.changes import commits, evolution
from skiway.formats.iceberg.writing import data_files
from skiway.metastore import managed
from skiway.metastore.gc import warehouse
from skiway.metastore.managed.commits import ATTEMPTS

PAGE = (Path(__file__).parents[3] / "docs" / "managed-tables.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_example_prints_the_output_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    ((code, printed),) = EXAMPLES
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_page_lists_every_call_with_its_arguments() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE))
    for name, function in inspect.getmembers(managed, inspect.isfunction):
        known = list(inspect.signature(function).parameters)
        shown = [argument.partition("=")[0] for argument in rows[name].split(", ") if argument != "..."]
        assert shown == known[: len(shown)], name


@pytest.mark.parametrize("module", [commits, evolution])
def test_page_lists_every_producer(module: ModuleType) -> None:
    functions = inspect.getmembers(module, inspect.isfunction)
    producers = {name for name, function in functions if function.__annotations__.get("return") == "Producer"}
    producers -= {"sort_by", "_producer", "of_metadata"}
    assert producers
    assert {name for name in producers if name not in PAGE} == set()


def test_numbers_on_the_page_match_the_code() -> None:
    limits = inspect.signature(data_files.DataFileWriter).parameters
    for phrase in (
        f"up to {ATTEMPTS} times",
        f"about {limits['buffer_bytes'].default >> 20} MiB",
        f"{limits['max_open_files'].default} files open",
        f"`write.target-file-size-bytes` ({data_files._TARGET_BYTES >> 20} MiB)",
        f"({data_files._ROW_GROUP_BYTES >> 20} MiB)",
    ):
        assert phrase in PAGE, phrase
    assert warehouse.THREE_DAYS_S == 3 * 86400
