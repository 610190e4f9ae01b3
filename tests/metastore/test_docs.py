"""The metastore page matches the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from skiway.metastore.records import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, keys
from skiway.metastore.records.names import MAX_DEPTH, MAX_NAME
from skiway.metastore.records.realm import Realm
from skiway.metastore.statistics.api import PAGE

PAGE_TEXT = (Path(__file__).parents[2] / "docs" / "metastore.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE_TEXT, re.DOTALL)
MODULES = (
    "accounts",
    "catalogs",
    "namespaces",
    "tables",
    "views",
    "snapshots",
    "statistics",
    "directory",
    "transactions",
    "events",
    "blob_cache",
    "gc",
)


INTERNAL = {
    *("clear", "check_id", "current_put", "stored_id", "without_statistics", "writing", "inherited"),
    *("query_digest", "set_definer", "without_claims", "head", "read", "calls"),
}
"""Functions that the rest of the metastore builds on."""

WHERE = {
    "statistics": "skiway.metastore.statistics",
    "blob_cache": "skiway.storage.blobs.cache",
    "gc": "skiway.metastore.gc",
    "transactions": "skiway.metastore.transactions",
    "events": "skiway.metastore.events",
}


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_examples_print_the_output_on_the_page(code, printed, capsys):
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_page_has_an_example():
    assert len(EXAMPLES) == 1


@pytest.mark.parametrize("module", MODULES)
def test_page_lists_every_call(module):
    row = next(line for line in PAGE_TEXT.splitlines() if line.startswith(f"| `{module}` |"))
    calls = _calls(importlib.import_module(WHERE.get(module, f"skiway.metastore.resources.{module}"))) - INTERNAL
    shown = set(re.findall(r"`(\w+)(?:\(\w+\))?`", row)) - {module}
    if "the same" in row:
        shown |= {"create", "get", "list_", "update", "delete"}
    assert shown == calls


def _calls(module):
    """The functions that a module defines, or that a package exports."""
    if hasattr(module, "__path__"):
        return {name for name, _ in inspect.getmembers(module, inspect.isfunction)}
    tree = ast.parse(inspect.getsource(module))
    targets = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    names |= {ast.unparse(node.target) for node in tree.body if isinstance(node, ast.AnnAssign)}
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names & vars(module).keys() if name.islower() and not name.startswith("_")}


def test_numbers_on_the_page_match_the_code():
    for phrase in (
        f"Up to {MAX_NAME} characters",
        f"to {MAX_DEPTH} deep",
        f"{DEFAULT_PAGE_SIZE} by default (statistics {PAGE})",
        f"most {MAX_PAGE_SIZE}",
        f"for {Realm.__dataclass_fields__['idempotency_ttl_s'].default:.0f} s",
        f"after {Realm.__dataclass_fields__['closing_s'].default:.0f} s",
    ):
        assert phrase in PAGE_TEXT, phrase


def test_keys_on_the_page_match_the_code():
    for key in (
        keys.account("{a}"),
        keys.catalog("{a}", "{c}"),
        keys.namespace("{a}", "{n}"),
        keys.table("{a}", "{t}"),
        keys.view("{a}", "{v}"),
        keys.connector("{a}", "{id}"),
        keys.job("{a}", "{id}"),
    ):
        assert f"`{key.replace('%7B', '{').replace('%7D', '}')}`" in PAGE_TEXT
