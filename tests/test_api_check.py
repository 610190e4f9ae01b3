"""The check for changes of the gRPC API that break clients of the last release, which `make lint` runs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from examples.pages import PROJECT

RELEASED = """
syntax = "proto3";
package lake;
message Table {
  string name = 1;
  int64 rows = 2;
  repeated string tags = 3;
  oneof source { string path = 4; string address = 5; }
  message Column { string name = 1; }
  enum State { UNKNOWN = 0; READY = 1; }
}
service Tables { rpc Get(Table) returns (Table); rpc Watch(Table) returns (stream Table); }
"""


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(PROJECT / "scripts" / "check_api.py"))


def found(check: dict[str, Any], folder: Path, changed: str) -> list[str]:
    described = []
    for name, text in (("old", RELEASED), ("new", changed)):
        (folder / name).mkdir()
        (folder / name / "lake.proto").write_text(text)
        described.append(check["compiled"](folder / name))
    return list(check["breaks"](*described))


@pytest.mark.parametrize(
    ("part", "now"),
    [
        ("int64 rows = 2;", "int64 rows = 2; string comment = 6;"),
        ("int64 rows = 2;", 'reserved 2; reserved "rows";'),
        ("READY = 1;", "READY = 1; GONE = 2;"),
        ("READY = 1;", "reserved 1;"),
        ("rpc Get(Table) returns (Table);", "rpc Get(Table) returns (Table); rpc List(Table) returns (Table);"),
        ("message Column", "message Index {} message Column"),
    ],
)
def test_additions_and_reserved_names_break_nothing(check: dict[str, Any], tmp_path: Path, part: str, now: str) -> None:
    assert found(check, tmp_path, RELEASED.replace(part, now)) == []


@pytest.mark.parametrize(
    ("part", "now", "reason"),
    [
        ("int64 rows = 2;", "", "field lake.Table.rows was removed: write `reserved 2; reserved"),
        ("int64 rows = 2;", "reserved 2;", "field lake.Table.rows was removed"),
        ("int64 rows = 2;", "int64 rows = 6;", "field lake.Table.rows was removed"),
        ("int64 rows = 2;", "int64 count = 2;", "optional int64 rows is now optional int64 count"),
        ("int64 rows = 2;", "string rows = 2;", "optional int64 rows is now optional string rows"),
        ("repeated string tags", "string tags", "repeated string tags is now optional string tags"),
        (
            "oneof source { string path = 4; string address = 5; }",
            "string path = 4; string address = 5;",
            "in source is now",
        ),
        ("message Column { string name = 1; }", "", "message lake.Table.Column was removed"),
        ("READY = 1;", "", "value lake.Table.State.READY = 1 was removed"),
        ("READY = 1;", "DONE = 1;", "value lake.Table.State.READY = 1 was removed or renamed"),
        ("rpc Get(Table) returns (Table);", "", "method lake.Tables.Get was removed"),
        ("returns (stream Table)", "returns (Table)", "method lake.Tables.Watch was changed"),
        ("service Tables", "service Lakes", "service lake.Tables was removed"),
    ],
)
def test_breaking_changes_are_named(check: dict[str, Any], tmp_path: Path, part: str, now: str, reason: str) -> None:
    assert part in RELEASED
    assert any(reason in line for line in found(check, tmp_path, RELEASED.replace(part, now)))


def test_present_api_can_be_compared_with_itself(check: dict[str, Any]) -> None:
    present = check["compiled"](PROJECT / "proto")
    assert list(check["breaks"](present, present)) == []
    assert "skiway.v1.Webhook" in check["_messages"](present)
