from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.errors import InvalidArgument
from skiway.foundation.resources import namespace_path, schema_name

segments = st.text(alphabet=st.sampled_from("ab.\\_main "), min_size=1, max_size=6)


@given(st.lists(segments, min_size=1, max_size=4))
def test_path_round_trips_through_its_schema_name(path: list[str]) -> None:
    assert namespace_path(schema_name(path)) == tuple(path)


@given(st.lists(segments, min_size=1, max_size=3), st.lists(segments, min_size=1, max_size=3))
def test_different_paths_have_different_names(one: list[str], other: list[str]) -> None:
    assert (schema_name(one) == schema_name(other)) == (one == other)


@given(st.lists(segments, min_size=1, max_size=3))
def test_no_schema_is_named_main(path: list[str]) -> None:
    assert schema_name(path).casefold() != "main"


def test_dots_inside_a_segment_are_escaped() -> None:
    assert schema_name(["sales", "v1.2"]) == r"sales.v1\.2"
    assert schema_name(["main"]) == "main_"
    assert schema_name(["main_"]) == "main__"


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", ".a", "a.", "a\\", r"a\b", "a/../b"])
def test_invalid_schema_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a schema name"):
        namespace_path(name)
