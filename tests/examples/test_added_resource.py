"""The example of CONTRIBUTING.md for a new resource: applied to a copy of the project, it works through every door."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from examples.pages import CONTRIBUTING, PROJECT

BLOCK = re.compile(r"^ *```\w+ (\S+/\S+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DESCRIPTIONS = "src/skiway/foundation/resources.py"
EMPTY = "PLAIN: Final[tuple[Resource, ...]] = ()\n"


def blocks() -> dict[str, str]:
    """The example, by file."""
    section = CONTRIBUTING.read_text().split("### Add a resource\n")[1].split("\n### ")[0]
    return {path: dedent(text) for path, text in BLOCK.findall(section)}


def test_example_is_one_message_and_one_description() -> None:
    added = blocks()
    assert set(added) == {"proto/skiway/v1/notice.proto", "proto/skiway/v1/common.proto", DESCRIPTIONS}
    assert sum(len(text.splitlines()) for text in added.values()) < 60


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the example, and the model that is generated from it."""
    copied = tmp_path_factory.mktemp("copy")
    for folder in ("proto", "src", "scripts"):
        shutil.copytree(PROJECT / folder, copied / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in blocks().items():
        file = copied / path
        if not file.exists():
            file.write_text(text)
            continue
        before = file.read_text()
        last_kind = re.findall(r"^  RK_\w+ = \d+;\n", before, re.MULTILINE)[-1] if path.endswith(".proto") else EMPTY
        assert before.count(last_kind) == 1
        if path.endswith(".proto"):
            text = f"{last_kind}  {text.strip()}\n"
        file.write_text(before.replace(last_kind, text))
    run(copied, "scripts/generate_model.py")
    return copied


def run(copied: Path, *arguments: str | Path) -> None:
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=copied,
        env=os.environ | {"PYTHONPATH": f"{copied / 'src'}{os.pathsep}{PROJECT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:] or ended.stdout[-5000:]


def test_example_works_through_every_door(copy: Path, tmp_path: Path) -> None:
    run(copy, PROJECT / "tests" / "examples" / "use_notices.py", tmp_path)


def test_generated_files_are_up_to_date_after_the_example(copy: Path) -> None:
    run(copy, "scripts/generate_model.py", "--check")
