"""The mistakes in `mistakes.md`: each produces exactly the message that the file shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from skiway.errors import SkiwayError

PAGE = Path(__file__).with_name("mistakes.md")
BLOCK = re.compile(r"^```(python mistake|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[tuple[int, str]]:
    """The blocks of a kind, each with the number of its first line."""
    text = PAGE.read_text()
    return [(text[: found.start(2)].count("\n"), found[2]) for found in BLOCK.finditer(text) if found[1] == kind]


MISTAKES = blocks("python mistake")
MESSAGES = [message.removesuffix("\n") for _, message in blocks("text")]


def run(line: int, program: str, names: dict[str, Any]) -> None:
    exec(compile("\n" * line + program, str(PAGE), "exec"), names)


@pytest.mark.parametrize(
    ("line", "program", "message"),
    [(*mistake, message) for mistake, message in zip(MISTAKES, MESSAGES, strict=True)],
    ids=[f"line {line + 1}" for line, _ in MISTAKES],
)
def test_mistake_has_the_message_shown(line: int, program: str, message: str) -> None:
    names: dict[str, Any] = {"__name__": "mistake"}
    for block in blocks("python"):
        run(*block, names)
    with pytest.raises(SkiwayError) as caught:
        run(line, program, names)
    assert caught.value.message == message


def test_the_page_shows_one_message_per_mistake() -> None:
    assert len(MISTAKES) == len(set(MESSAGES)) >= 20
    order = [found[1] for found in BLOCK.finditer(PAGE.read_text()) if found[1] != "python"]
    assert order == ["python mistake", "text"] * len(MISTAKES)
