"""Names of resources, as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.client.metastore import Id, dotted
from skiway.client.metastore.calls import segments
from skiway.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lake", ("lake",)),
        ("lake.sales.people", ("lake", "sales", "people")),
        ('lake."eu.west".people', ("lake", "eu.west", "people")),
        ('"a ""b"" c"', ('a "b" c',)),
        (" lake . sales 2025 ", (" lake ", " sales 2025 ")),
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
def test_text_is_split_at_unquoted_dots_and_blank_segments_are_rejected(text, parts) -> None:
    if parts is not None:
        assert segments(text, resource="table") == parts
        return
    with pytest.raises(InvalidArgument, match="it has a blank segment") as refused:
        segments(text, resource="table")
    assert refused.value.key == "path.segment.blank"


@pytest.mark.parametrize("text", ['lake."sales', 'lake.sa"les', '"a"b.c', '"a" "b"', 'a"'])
def test_misplaced_quotes_are_rejected_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidArgument, match="in double quotes") as refused:
        segments(text, resource="table")
    assert refused.value.key == "name.malformed"


@pytest.mark.parametrize("name", [7, None, ["lake", 7], {"lake"}, b"lake"])
def test_invalid_name_is_rejected(name: object) -> None:
    with pytest.raises(InvalidArgument, match="does not name a table: give dotted text"):
        segments(name, resource="table")  # type: ignore[arg-type]


def test_segments_are_used_unchanged() -> None:
    assert segments(("lake", 'a."b', "x y"), resource="table") == ("lake", 'a."b', "x y")


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1))
def test_dotted_path_round_trips(path: list[str]) -> None:
    assert segments(dotted(path), resource="table") == tuple(path)


def test_plain_names_are_shown_without_quotes() -> None:
    assert dotted(("lake", "sales 2025", "Umsätze")) == "lake.sales 2025.Umsätze"


def test_id_is_a_string_with_a_descriptive_repr() -> None:
    assert repr(Id("7f3c")) == "Id('7f3c')"
    assert f"{Id('7f3c')}" == "7f3c" == Id("7f3c")
