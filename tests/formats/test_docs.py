"""The formats page matches the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from skiway.formats.opening import KINDS
from skiway.security.source_access import access

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "formats.md").read_text()


def test_every_error_key_is_on_the_page() -> None:
    keys = set(re.findall(r'key="([\w.]+)"', "".join(reading_modules().values())))
    assert len(keys) > 15
    assert {key for key in keys if f"`{key}`" not in PAGE} == set()


def reading_modules() -> dict[str, str]:
    """The source text, by name, of the modules that implement sources and of the modules they import."""
    found: dict[str, str] = {}
    pending = {target.partition(":")[0].removeprefix("skiway.") for target in KINDS.values()}
    while pending:
        name = pending.pop()
        path = (PROJECT / "src" / "skiway").joinpath(*name.split("."))
        found[name] = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        imported = re.findall(r"from skiway\.((?:formats|security)\.[\w.]+) import", found[name])
        pending |= set(imported) - found.keys()
    return found


def test_every_kind_is_on_the_page() -> None:
    assert [name for name in KINDS if f"`{name}`" not in PAGE] == []


def test_docstring_examples_pass() -> None:
    failures, tried = doctest.testmod(access)
    assert (failures, tried > 0) == (0, True)
