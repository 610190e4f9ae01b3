"""The keys of the pointer store are built and parsed in one module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from skiway.metastore.records import keys

SOURCE = Path(keys.__file__).parents[2]
ROOTS = (
    *("/accounts", "/closing", "/dropped", "/events", "/expected", "/folders", "/history", "/pins", "/platform"),
    *("/queue", "/schedule", "/secrets", "/written"),
)


def test_no_other_module_builds_keys() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}: {node.value!r}"
        for file in SOURCE.rglob("*.py")
        if file != Path(keys.__file__) and any(root in (text := file.read_text()) for root in ROOTS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(ROOTS)
    ]
    assert found == []


@pytest.mark.parametrize("text", ["plain", "a/b", "a%2Fb", "ä 🛬", "by-id"])
def test_ids_can_be_parsed_from_keys(text: str) -> None:
    assert keys.scheduled_ids(keys.SCHEDULE, keys.schedule(text, "c/d")) == (text, "c/d")
    assert keys.secret_ids(keys.secret(text, "c/d", "s")) == (text, "c/d", "s")


def test_account_and_table_can_be_parsed_from_keys() -> None:
    snapshot = keys.snapshot("a/1", "t", 7)
    assert keys.table_of(snapshot) == keys.table("a/1", "t")
    assert keys.table_of(keys.table("a/1", "t")) is None
    assert keys.account_of(snapshot) == keys.account_prefix(snapshot) == keys.of_account("a/1")
    assert keys.account_of(keys.account("a/1")) == keys.ACCOUNTS
    assert keys.of_blob(f"{keys.folder(snapshot)}/ab/digest.pb") == snapshot
    assert keys.of_blob("elsewhere/x/y") is None
