"""Every error has a message under its own code, and the parameters that the message needs."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import skiway.errors
import skiway.metastore
from metastore.resource_factory import behavior
from skiway.errors import Conflict, InvalidArgument, NotFound, SkiwayError
from skiway.metastore.records.errors import failure, sentence, sentences
from skiway.metastore.records.kinds import KINDS
from skiway.model import v1

SOURCE = Path(skiway.metastore.__file__).parent
NOUNS = [kind.noun for kind in KINDS]
CODES = {
    name: error.code
    for name, error in vars(skiway.errors).items()
    if isinstance(error, type) and issubclass(error, SkiwayError)
}


def raised_errors() -> Iterator[tuple[str, str, str, set[str]]]:
    """Where the metastore and its RPC door raise errors, with their code, key and parameters."""
    for file in sorted([*SOURCE.rglob("*.py"), *(SOURCE.parent / "rpc").rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failure":
                code = CODES.get(ast.unparse(node.args[0]), "")
                params = {str(keyword.arg) for keyword in node.keywords}
                for key in possible_keys(node.args[1]):
                    yield f"{file.name}:{node.lineno}", code, key, params


EXPRESSIONS = {
    "self.empty": ["column.stats.empty", "file.column.stats.empty"],
    "f'{noun}.not_empty'": ["account.not_empty", "catalog.not_empty", "namespace.not_empty"],
}
"""The keys that some expressions can have."""


def possible_keys(node: ast.expr) -> list[str]:
    """The possible keys of an expression; a computed part is the noun of a kind."""
    if (text := ast.unparse(node)) in EXPRESSIONS:
        return EXPRESSIONS[text]
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        pattern = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        return [pattern]
    if isinstance(node, ast.IfExp):
        return [*possible_keys(node.body), *possible_keys(node.orelse)]
    return ["*"]


RAISED = [each for each in raised_errors() if each[1]]


def template(code: str, key: str) -> str | None:
    entries = sentences("en").get(code, {})
    rest = key.partition(".")[2]
    return entries.get(key) or entries.get(f"*.{rest}" if rest else "*")


@behavior(81)
@pytest.mark.parametrize(
    ("where", "code", "key", "params"), RAISED, ids=[f"{where}-{key}" for where, _, key, _ in RAISED]
)
def test_every_error_has_a_message_and_its_parameters(where, code, key, params):
    found = template(code, key)
    assert found is not None, f"{where}: {code} has no message for {key}"
    needed = {name for _, name, _, _ in string.Formatter().parse(found) if name}
    assert needed <= params, f"{where}: {key} needs {needed - params}"


@behavior(81)
def test_every_message_is_used():
    used = {(code, key) for _, code, key, _ in RAISED}
    used |= {(code, f"{noun}{key[1:]}") for code, key in used if key.startswith("*.") for noun in NOUNS}
    used |= {(code, f"*.{key.partition('.')[2]}") for code, key in used if "." in key}
    used |= {(code, "*") for code, key in used if key in NOUNS}
    unused = [(code, key) for code, entries in sentences("en").items() for key in entries if (code, key) not in used]
    assert unused == []


@behavior(81)
def test_every_error_code_is_in_the_protocol():
    assert set(CODES.values()) <= set(v1.ErrorCode.keys())
    assert sentences("en").keys() <= set(v1.ErrorCode.keys())


@behavior(81)
def test_failure_has_code_key_parameters_and_message():
    error = failure(NotFound, "catalog", resource="catalog", id="c{1}")
    assert (error.code, error.key, error.params["id"]) == ("MC_NOT_FOUND", "catalog", "c{1}")
    assert str(error) == "there is no catalog c{1} in this account: check the id, it may have been deleted"


@behavior(81)
def test_unknown_language_falls_back_to_english_and_unknown_key_to_itself():
    params = {"resource": "view", "id": "v"}
    assert sentence("MC_NOT_FOUND", "view", params, language="xx") == sentence("MC_NOT_FOUND", "view", params)
    assert sentence("MC_NOT_FOUND", "view", params, language="../en").startswith("there is no view v")
    assert sentence("MC_CONFLICT", "made.up", {}) == "made.up"
    assert failure(Conflict, "made.up").message == "made.up"


@pytest.mark.parametrize("field", ["uri", "display_name", "schema_json", "namespace_id"])
def test_key_with_several_parts_uses_the_message_of_its_suffix(field):
    error = failure(InvalidArgument, f"{field.replace('_', '.')}.cannot.clear", field=field)
    assert error.message.startswith(f"{field} is in the update_mask but not in the spec")
