from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metastore.resource_factory import behavior, expect_error
from skiway.errors import InvalidArgument, LimitExceeded
from skiway.metastore.records import keys, names
from skiway.metastore.records.names import encoded, exact_name, exact_path, exact_text, normal_path, normal_text


@behavior(19)
@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("  sales ", "sales"),
        ("a \t\n b", "a b"),
        ("ﬁle", "file"),
        ("Ａ１", "A1"),
        ("e\u0301", "é"),
        ("a\u00a0b", "a b"),
    ],
)
def test_name_that_is_not_in_normal_form_is_rejected_and_the_error_suggests_the_normal_form(given_name, expected):
    assert normal_text(given_name) == expected
    for attempt in (
        lambda: exact_name(given_name, resource="catalog"),
        lambda: exact_text(given_name, field="display_name"),
        lambda: exact_path(["a", given_name], field="display_name"),
    ):
        with expect_error(InvalidArgument, "name.not.normal", field="display_name") as caught:
            attempt()
        assert f"use {expected!r} (" in str(caught.value)


@pytest.mark.parametrize("name", ["Sales", "a.b/c%20", "é", "two words", "日本", "x'\"\\y"])
def test_name_in_normal_form_is_stored_as_it_is(name):
    assert exact_name(name, resource="catalog") == exact_text(name, field="f") == name
    assert exact_path([name, "b"], field="path") == (name, "b")


@behavior(19)
@pytest.mark.parametrize("blank", ["", "  ", "\u00a0\t", "\u3000", "\u200b", "\u202e \ufeff", "\0"])
def test_blank_names_are_rejected(blank):
    with expect_error(InvalidArgument, "display.name.required", resource="catalog"):
        exact_name(blank, resource="catalog")
    with expect_error(InvalidArgument, "path.segment.blank", field="path"):
        normal_path(["a", blank], field="path")


def test_names_and_paths_have_a_maximum_length():
    assert exact_name("x" * 255, resource="table") == "x" * 255
    with expect_error(LimitExceeded, "name.too_long", limit="255"):
        exact_name("x" * 256, resource="table")
    with expect_error(LimitExceeded, "path.too_deep", limit="16"):
        normal_path(["a"] * 17, field="path")


@given(st.text())
def test_normalized_names_stay_the_same(text):
    assert normal_text(normal_text(text)) == normal_text(text)


@behavior(16)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=3), st.data())
def test_different_paths_have_different_keys_and_prefixes_match_exactly_their_descendants(path, data):
    other = data.draw(st.lists(st.sampled_from([*path, "a/b", "a.b", "a b", "a"]), min_size=1, max_size=4))
    key, other_key = keys.namespace_path("a", "c", path), keys.namespace_path("a", "c", other)
    assert (key == other_key) == (path == other)
    assert other_key.startswith(key + "/") == (len(other) > len(path) and other[: len(path)] == path)


def test_keys_contain_only_plain_characters():
    assert encoded("a b/ü%") == "a%20b%2F%C3%BC%25"
    assert encoded("A-z_0.~") == "A-z_0.~"


def test_docstring_examples_are_correct():
    assert doctest.testmod(names).failed == 0
