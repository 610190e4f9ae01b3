"""The limits of the sizes of code and documentation, which `make lint` checks."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.pages import PROJECT


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(PROJECT / "scripts" / "check_size.py"))


def test_sizes_above_their_limits_are_named_with_what_to_do(check: dict[str, Any]) -> None:
    limits = {"lines": 100, "modules": 5, "folders": 1}
    problems = list(check["findings"](limits, {"lines": 1100, "modules": 5, "words": 7}))
    assert problems == [
        "folders is not measured: remove it from size.toml",
        "lines is 1,100, 1,000 above its limit: say it with less, or raise the limit in size.toml and write there why",
        "words is 7 and has no limit: add it to size.toml",
    ]


def test_limits_are_only_lowered_and_keep_their_comments(check: dict[str, Any]) -> None:
    text = "# why\nlines = 100\nmodules = 5\n"
    assert check["lowered"](text, {"lines": 90, "modules": 6}) == "# why\nlines = 90\nmodules = 5\n"


def test_generated_code_is_counted_separately(check: dict[str, Any], tmp_path: Path) -> None:
    assert check["is_generated"](check["SOURCE"] / "model" / "v1" / "webhook_pb2.pyi")
    assert not check["is_generated"](check["SOURCE"] / "errors.py")
    (tmp_path / "module.py").write_text("a = 1\n\nb = 2\n")
    assert check["lines"](tmp_path / "module.py") == 3


def test_statements_pass_through_no_more_files_than_their_limits() -> None:
    script = str(PROJECT / "scripts" / "call_paths.py")
    run = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == ["select", "insert", "rest_commit", "sync"]


def test_changes_of_a_release_are_sorted_by_topic() -> None:
    released = runpy.run_path(str(PROJECT / "scripts" / "release_changelog.py"))["released"]
    text = (
        "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Trino reads views\n  of DuckDB.\n- A token expires.\n\n"
        "### Fixed\n\n- A bug.\n\n## [0.0.9]\n\nold\n"
    )
    sorted_text = released(text, "0.1.0", "2026-01-31", first=True)
    assert (
        sorted_text.index("## [Unreleased]")
        < sorted_text.index("## [0.1.0] - 2026-01-31")
        < sorted_text.index("## [0.0.9]")
    )
    assert "### Security\n\n- A token expires.\n" in sorted_text
    assert "### Iceberg REST and Trino\n\n- Trino reads views\n  of DuckDB.\n" in sorted_text
    assert "A bug" not in sorted_text
    assert "### Servers and stores\n\n- A bug.\n" in released(text, "0.1.0", "2026-01-31", first=False)


def test_style_finds_words_and_long_sentences_outside_of_code() -> None:
    check_style = runpy.run_path(str(PROJECT / "scripts" / "check_style.py"))
    text = f"# Title\n\nWe utilize it. `please`\n\n```sh\nplease\n```\n\n{'word ' * 41}\n"
    assert [(line, message.partition(":")[0]) for line, message in check_style["findings"](text)] == [
        (3, "'utilize'"),
        (9, "a sentence of 41 words"),
    ]


def test_words_between_markers_of_the_same_name_do_not_count(check: dict[str, Any]) -> None:
    text = "a b <!-- x: generated, do not edit --> c d <!-- end of y --> e <!-- end of x --> f"
    assert check["GENERATED"].sub("", text).split() == ["a", "b", "f"]


def test_every_generated_part_has_a_generator() -> None:
    """`tests/config/test_reference.py` knows the generators of whole pages, and `tests/formats` that of the matrix."""
    docs = PROJECT / "docs"
    marked = [path for path in docs.rglob("*.md") if ": generated, do not edit" in path.read_text()]
    assert [path for path in marked if path.parent != docs / "reference"] == [docs / "formats.md"]
