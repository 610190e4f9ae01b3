"""The programs on the page about the in-memory catalog run and print the output shown, and it lists all settings."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

from skiway.airport.memory import MemoryCatalog
from skiway.airport.request import Request, enter

PAGE = (Path(__file__).parents[3] / "docs" / "memory.md").read_text()


def test_programs_on_the_page_run_and_print_the_output_shown() -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {})
    finally:
        enter(Request())
    location, *lines = printed.getvalue().splitlines()
    assert location.startswith("grpc://")
    assert lines == re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)


def test_every_setting_is_on_the_page() -> None:
    settings = set(inspect.signature(MemoryCatalog).parameters) - {"name"}
    table = PAGE.partition("| setting |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|[^|]*\|$)", table, re.MULTILINE)) == settings
