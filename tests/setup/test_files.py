"""Setup files: what is read, which mistakes are reported with their lines, and the JSON schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from setup.example import SECRET, everything, text_of
from skiway.setup import InvalidSetup, checked, read, schema_text, write
from skiway.setup.declarations import Catalog, Setup

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "setup.schema.json"
CONNECTOR = "connectors:\n- name: c\n  kind: parquet\n  uri: /x\n  destination: {catalog: lake}\n"


def problems(text: str) -> list[tuple[int, str]]:
    with pytest.raises(InvalidSetup) as error:
        checked(read(text, "lake.yaml"))
    assert str(error.value).startswith("lake.yaml, line ")
    return [(line, message) for line, message in error.value.problems]


def test_what_is_written_is_read_again() -> None:
    setup = checked(read(text_of(everything(Path("/data"))))).setup
    assert read(write(setup)).setup == setup
    assert write(setup) == write(read(write(setup)).setup)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=3))
@example(["\x85", "a\n\x85 b", "\u2028", "x\u2029\n"])
def test_every_text_survives(texts: list[str]) -> None:
    setup = Setup(version=1, catalogs=tuple(Catalog(name=each, properties={each: each}) for each in texts))
    assert read(write(setup)).setup == setup


KINDS = "kind must be iceberg, delta, glue, hive, unity, parquet, csv, json, jdbc or airport"


@pytest.mark.parametrize("word", ["on", "yes", "no", "2026-01-01", "y", "=", "~x"])
def test_words_that_look_like_other_types_are_text(word: str) -> None:
    (catalog,) = read(f"version: 1\ncatalogs: [{{name: {word}}}]").setup.catalogs or ()
    assert catalog.name == word


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("version: 1\ncatalogs:\n- nam: lake", 3, "catalogs[0] has no key 'nam': did you mean name?"),
        ("version: 1\ncatalogs:\n- {}", 3, "catalogs[0] lacks the key name: add it"),
        ("version: 1\nrubbish: 1", 2, "the file has no key 'rubbish': use version, account, catalogs, "),
        ("version: 2", 1, "version must be 1"),
        ("catalogs: []", 1, "the file lacks the key version: add it"),
        ("version: 1\ncatalogs:\n- name: 5", 3, "catalogs[0].name must be text, but is a number: put it in quotes"),
        ("version: 1\ncatalogs:\n- name: true", 3, "name must be text, but is true or false: put it in quotes"),
        ("version: 1\ncatalogs:\n- name: [x]", 3, "catalogs[0].name must be text, but is a list"),
        ("version: 1\ncatalogs:\n  name: lake", 3, "catalogs must be a list: begin each item with a dash"),
        ("version: 1\ncatalogs:\n- lake", 3, "catalogs[0] must be a mapping: write key: value"),
        ("version: 1\npipelines:\n- {name: x, files: {}}", 3, "files needs pipeline.yml"),
        (
            "version: 1\npipelines:\n- {name: x, files: {pipeline.yml: 'name: y'}}",
            3,
            "name is 'x', but pipeline.yml has 'y': give both the same name",
        ),
        ("version: 1\npipelines:\n- {name: x, files: {pipeline.yml: 'a: ['}}", 3, "pipeline.yml is not valid YAML"),
        ("version: 1\ncatalogs:", 2, "catalogs has no value: give one, or leave out the key"),
        ("version: 1\ncatalogs:\n- name: a\n  name: b", 4, "catalogs[0] has the key 'name' twice"),
        ("version: 1\ncatalogs:\n- name: !x a", 3, "has the tag !x: leave it out"),
        ("version: 1\ncatalogs:\n- name: a\n- name: b\n- name: a", 5, "catalogs has a twice, first in line 3"),
        ("version: 1\ncatalogs:\n- {name: a\n", 4, "this is not valid YAML"),
        ("", 1, "expected one YAML document, found nothing"),
        ("version: 1\n---\nversion: 1", 1, "expected one YAML document, found 2 documents"),
        ("version: 1\nnamespaces:\n- name: lake", 3, "'lake' is not the full name of a namespace: write it like lake.sales"),
        ('version: 1\nnamespaces:\n- name: lake."x', 3, "is not a valid name of a namespace"),
        ("version: 1\n" + CONNECTOR + "  paused: maybe", 7, "paused must be true or false, but is text"),
        ("version: 1\n" + CONNECTOR + "  schedule:\n    every: often", 8, "every must be a duration above zero"),
        ("version: 1\n" + CONNECTOR + "  schedule:\n    max_parallel: -1", 8, "must be a whole number, 0 or more"),
        ("version: 1\n" + CONNECTOR + "  schedule: {not_before: 2026-01-01}", 7, "must be a time with a zone"),
        ("version: 1\n" + CONNECTOR.replace("parquet", "xml"), 4, KINDS),
        ("version: 1\ngrants:\n- to: user:a\n  privilege: read\n  on: {}", 5, "a reference names one object"),
        ("version: 1\nviews:\n- name: a.b.c\n  sql: {}", 4, "view a.b.c has no SQL"),
        ("version: 1\npolicies:\n- name: p\n  to: [everyone]", 3, "policy p needs one rule: row_filter or mask"),
        ("version: 1\npolicies:\n- name: p\n  to: []\n  mask: {}", 5, "the mask of policy p needs either kind or sql"),
    ],
)  # fmt: skip
def test_mistake_is_reported_with_its_line(text: str, line: int, message: str) -> None:
    found = problems(text)
    assert [each for each, _ in found] == [line], found
    assert message in found[0][1]


def test_all_mistakes_are_reported_at_once() -> None:
    found = problems("version: 1\ncatalogs:\n- name: 5\n- nam: x\ngrants: 7")
    assert [line for line, _ in found] == [3, 4, 5]


@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        (f"{{type: bearer, token: {SECRET}}}", "must be a reference such as {env: NAME} or {file: PATH}, not the secret"),
        (f"{{token: {SECRET}}}", "must be a reference"),
        (SECRET, "must be a mapping"),
        (f"[{SECRET}]", "must be a mapping"),
        (f"{{type: {SECRET}}}", "type must be bearer, client, aws, cli or password"),
        (f"{{type: bearer, token: {{value: {SECRET}}}}}", "has no key 'value': use env or file"),
        ("{type: bearer, token: {env: A, file: b}}", "token needs one reference"),
        ("{type: bearer, token: {}}", "token needs one reference"),
        ("{type: bearer}", "credentials of type bearer lack token: add it"),
        ("{type: bearer, token: {env: A}, provider: aws}", "credentials of type bearer have no key provider: use token"),
        ("{env: A, file: b}", "credentials need one reference"),
        ("{}", "credentials need one reference"),
    ],
)  # fmt: skip
def test_mistake_in_credentials_is_reported_without_the_secret(credentials: str, message: str) -> None:
    found = problems(f"version: 1\n{CONNECTOR}  auth:\n    credentials: {credentials}")
    assert all(line == 8 for line, _ in found)
    assert message in found[0][1]
    assert SECRET not in str(found)


def test_recursive_file_is_rejected() -> None:
    text = "version: 1\ntables:\n- name: a.b.c\n  columns: &x\n  - name: d\n    type: {type: struct, fields: *x}"
    assert "levels deep" in problems(text)[0][1]


def test_committed_schema_is_up_to_date() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run: python -m skiway.setup docs/setup.schema.json"


def test_schema_accepts_a_full_setup_and_its_export_and_rejects_mistakes() -> None:
    schema = json.loads(schema_text())
    validator = jsonschema.Draft202012Validator(schema)
    declared = everything(Path("/data"))
    validator.validate(declared)
    validator.validate(yaml.safe_load(write(checked(read(text_of(declared))).setup)))
    for mistake in (
        {"version": 2},
        {"version": 1, "catalog": []},
        {"version": 1, "catalogs": None},
        {"version": 1, "catalogs": [{"name": 5}]},
        {"version": 1, "catalogs": [{}]},
        {"version": 1, "grants": [{"to": "user:a", "privilege": "own", "on": {"catalog": "x"}}]},
        {"version": 1, "connectors": [{**declared["connectors"][0], "auth": {"credentials": {"token": "x"}}}]},
    ):
        assert not validator.is_valid(mistake), mistake
