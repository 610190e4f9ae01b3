"""Names of resources, as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.client.metastore import Id, dotted
from skiway.client.metastore.names import segments
from skiway.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lake", ("lake",)),
        ("lake.sales.people", ("lake", "sales", "people")),
        ('lake."eu.west".people', ("lake", "eu.west", "people")),
        ('"a ""b"" c"', ('a "b" c',)),
        (" lake . sales 2025 ", ("lake", "sales 2025")),
        ('"".x', None),
        ("lake..people", None),
        ("lake.sales.", None),
        (".sales", None),
        ("", None),
        ("   ", None),
        ((), None),
        (("lake", " "), None),
    ],
)
def test_text_is_split_at_dots_outside_of_quotes_and_blank_segments_are_refused(text, parts) -> None:
    if parts is not None:
        assert segments(text, resource="table") == parts
        return
    with pytest.raises(InvalidArgument, match="it has a blank segment") as refused:
        segments(text, resource="table")
    assert refused.value.key == "path.segment.blank"


@pytest.mark.parametrize("text", ['lake."sales', 'lake.sa"les', '"a"b.c', '"a" "b"', 'a"'])
def test_quotes_that_do_not_fit_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidArgument, match="in double quotes") as refused:
        segments(text, resource="table")
    assert refused.value.key == "name.malformed"


@pytest.mark.parametrize("name", [7, None, ["lake", 7], {"lake"}, b"lake"])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument, match="does not name a table: give dotted text"):
        segments(name, resource="table")  # type: ignore[arg-type]


def test_segments_are_taken_as_they_are() -> None:
    assert segments(("lake", 'a."b', "x y"), resource="table") == ("lake", 'a."b', "x y")


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1))
def test_a_dotted_path_is_read_back_as_it_was(path: list[str]) -> None:
    assert segments(dotted(path), resource="table") == tuple(path)


def test_plain_names_are_shown_without_quotes() -> None:
    assert dotted(("lake", "sales 2025", "Umsätze")) == "lake.sales 2025.Umsätze"


def test_an_id_is_text_that_says_what_it_is() -> None:
    assert repr(Id("7f3c")) == "Id('7f3c')"
    assert f"{Id('7f3c')}" == "7f3c" == Id("7f3c")
