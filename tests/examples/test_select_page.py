"""The page "How a SELECT travels": a server calls its functions, in the order of the page."""

from __future__ import annotations

import re
import runpy
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from examples.pages import PROJECT

PAGE = (PROJECT / "docs" / "select.md").read_text()
ROW = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
SOURCE = PROJECT / "src" / "skiway"


def test_server_calls_the_functions_on_the_page_in_this_order(tmp_path: Path) -> None:
    called: list[tuple[str, str]] = []
    recording = threading.Event()

    def record(frame: FrameType, event: str, _: Any) -> None:
        if recording.is_set() and event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            called.append((str(Path(frame.f_code.co_filename).relative_to(SOURCE)), frame.f_code.co_qualname))

    statements = runpy.run_path(str(PROJECT / "scripts" / "call_paths.py"))["statements"]
    threading.setprofile(record)
    try:
        with statements(tmp_path) as known:
            select = known["select"]
            select()  # starts threads, which are then recorded
            recording.set()
            select()
            recording.clear()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    sections = PAGE.split("\n## ")[1:]
    assert [ROW.search(section) is not None for section in sections] == [True, True, True]
    for section in sections:
        assert missing_in_order(ROW.findall(section), called) == []


def missing_in_order(expected: list[tuple[str, str]], called: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was not called after the functions before it."""
    left = list(expected)
    for each in called:
        if left and each == left[0]:
            left.pop(0)
    return left


def test_wrong_order_is_found() -> None:
    first, second = ("a.py", "f"), ("b.py", "g")
    assert missing_in_order([first, second], [second, first]) == [second]
    assert missing_in_order([first, second], [first, ("c.py", "h"), second]) == []
