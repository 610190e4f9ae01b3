"""`skiway.seen_by`: administrators see a table as policies show it to somebody else, also under a policy that is not stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lake.policed_lake import CANARY, VISIBLE, PolicedLake, policed_lake
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, PermissionDenied
from skiway.sql import QueryEngine

PEOPLE = "s.people"
MASK = {"subjects": ["role:analyst"], "exceptions": ["user:boss"], "mask": {"kind": "MK_NULL", "columns": ["email"]}}


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine) -> Iterator[PolicedLake]:
    with policed_lake(tmp_path, queries) as found:
        yield found


def seen(db: AirportClient, caller: str, **named: Any) -> list[dict[str, Any]]:
    return list(db.call("skiway.seen_by", PEOPLE, caller, named=named).read_all().to_pylist())


def test_a_stored_policy_is_applied_for_the_other_caller(policed: PolicedLake) -> None:
    policed.filter("region = 'EU' AND caller('subject') = 'ann'")
    with policed.lake.client() as owner:
        assert sorted(each["id"] for each in seen(owner, "ann")) == VISIBLE
        assert seen(owner, "bob") == []
        assert len(seen(owner, "writer")) == 40
        assert len(owner.scan(PEOPLE).read_all()) == 40


def test_a_draft_is_applied_and_not_stored(policed: PolicedLake) -> None:
    draft = json.dumps({"display_name": "draft", **MASK})
    with policed.lake.client() as owner:
        for roles, caller, is_masked in (("analyst, x", "ann", True), ("x", "ann", False), ("analyst", "boss", False)):
            rows = seen(owner, caller, roles=roles, draft=draft)
            assert len(rows) == 40
            assert all((each["email"] is None) == is_masked for each in rows)
        assert all(each["email"] for each in seen(owner, "ann", roles="analyst"))
        assert owner.scan("skiway.policies").read_all().num_rows == 0
    with policed.lake.client(token="analyst") as analyst:
        assert all(analyst.scan(PEOPLE).read_all()["email"].to_pylist())


@pytest.mark.parametrize(
    ("draft", "says"),
    [("{", "not a policy"), ('{"row_filter": {"predicate": "nothing = 1"}, "subjects": ["everyone"]}', "nothing")],
)
def test_a_wrong_draft_is_reported(policed: PolicedLake, draft: str, says: str) -> None:
    with policed.lake.client() as owner, pytest.raises(InvalidArgument, match=says):
        seen(owner, "ann", draft=draft)


def test_only_administrators_without_policies_may(policed: PolicedLake) -> None:
    for token in ("reader", "nothing", "analyst"):
        with policed.lake.client(token=token) as other, pytest.raises(PermissionDenied):
            seen(other, "boss")
    policed.mask(exceptions=[], subjects=["user:writer"])
    with policed.lake.client() as owner:
        with pytest.raises(PermissionDenied) as error:
            seen(owner, "boss")
        assert CANARY not in str(error.value)
