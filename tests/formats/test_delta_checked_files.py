"""The files of a Delta log that are checked: sidecars, deletion vectors and links, in commits and checkpoints."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from formats.test_delta_references import ENCODED, ID
from skiway.errors import PermissionDenied
from skiway.formats import location
from skiway.formats.delta.log import _uuid, check_log, check_vectors
from skiway.formats.files import Files
from skiway.security.source_access import Location


class Folder:
    """The files of a table in memory, which remembers the locations that were checked."""

    def __init__(self, table: str, **contents: list[Any]) -> None:
        self.table, self.checked, self.linked = location(table), list[str](), list[Location]()
        self._contents = {name.replace("__", "/"): lines for name, lines in contents.items()}
        self.reach = SimpleNamespace(check=lambda place: self.checked.append(str(place)))

    def children(self, folder: Location) -> tuple[list[Location], list[Any]]:
        names = self._contents
        here = [folder / "_sidecars"] if folder.name == "_delta_log" and "_sidecars/s.json" in names else []
        prefix = "_sidecars/" if folder.name == "_sidecars" else ""
        files = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return here, [SimpleNamespace(location=folder / name) for name in files if "/" not in name]

    def read(self, uri: str) -> bytes:
        lines = self._contents[uri.partition("/_delta_log/")[2]]
        return "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines).encode()

    def links(self, folder: Location) -> list[Location]:
        return self.linked


def commit(version: int, *lines: Any) -> dict[str, list[Any]]:
    return {f"{version:020}.json": list(lines)}


def checked(table: str = "file:///t", **contents: list[Any]) -> list[str]:
    folder = Folder(table, **contents)
    check_vectors(cast(Files, folder), folder.table)
    return folder.checked


def added(kind: str, path: str) -> dict[str, Any]:
    return {"add": {"path": "x", "deletionVector": {"storageType": kind, "pathOrInlineDv": path}}}


def test_vectors_are_checked_by_their_names() -> None:
    vector = f"/t/deletion_vector_{ID}.bin"
    assert checked(**commit(0, added("u", ENCODED))) == [vector]
    assert checked(**commit(0, added("u", f"ab{ENCODED}"))) == [f"/t/ab/deletion_vector_{ID}.bin"]
    assert checked(**commit(0, added("p", "file:///other/v.bin"))) == ["/other/v.bin"]
    assert checked(**commit(0, added("p", "sub%20folder/v.bin"))) == ["/t/sub folder/v.bin"]
    assert checked(**commit(0, added("i", "inline"))) == []
    assert checked(**commit(0, {"add": {"path": "x", "deletionVector": None}}, {"add": 5}, [1], {"remove": {}})) == []


def test_lines_that_are_not_json_are_left_to_the_reader() -> None:
    lines = ['{"add": ', added("p", "v.bin"), '"add"', "", "nonsense"]
    assert checked(**commit(0, *lines)) == ["/t/v.bin"]


def test_vectors_in_all_files_of_the_log_are_checked() -> None:
    contents = {
        **commit(0, added("p", "zero")),
        **commit(1, added("p", "one")),
        f"{2:020}.checkpoint.{ID}.json": [added("p", "two")],
        "_sidecars/s.json": [added("p", "three")],
        f"{3:020}.json.tmp": [added("p", "not a commit")],
        "4.json": [added("p", "not a commit")],
    }
    assert sorted(checked(**contents)) == [f"/t/{name}" for name in ("one", "three", "two", "zero")]


@pytest.mark.parametrize("path", ["s3://other/v.bin", "file:///v.bin", "s3://", "gs://bucket/v.bin"])
def test_vectors_in_other_stores_are_rejected(path: str) -> None:
    with pytest.raises(PermissionDenied, match="refers to a file outside of its storage") as refused:
        checked("s3://bucket/t", **commit(0, added("p", path)))
    assert refused.value.params == {"location": "s3://bucket/t"}
    assert checked("s3://bucket/t", **commit(0, added("p", "s3://bucket/v.bin"))) == ["s3://bucket/v.bin"]


def test_names_of_vectors_are_uuids() -> None:
    assert _uuid(ENCODED) == str(UUID(int=7))
    assert [_uuid(each) for each in ("", "short", "x" * 20, '"' * 20)] == ["invalid"] * 2 + [_uuid("x" * 20), "invalid"]


def test_sidecars_of_checkpoints_and_links_are_checked() -> None:
    name = f"{2:020}.checkpoint.{ID}.json"
    folder = Folder(
        "file:///t", **{name: [{"sidecar": {"path": "a.parquet"}}, {"sidecar": {}}], **commit(1, {"sidecar": {"path": "no"}})}
    )  # fmt: skip
    folder.linked = [location("file:///t/_delta_log/link")]
    check_log(cast(Files, folder), folder.table)
    assert folder.checked[0] == "/t/_delta_log/link"
    assert folder.checked[1] == "/t/_delta_log/_sidecars/a.parquet"
    assert len(folder.checked) == 3
    remote = Folder("s3://bucket/t", **{name: []})
    remote.linked = [location("file:///x")]
    check_log(cast(Files, remote), remote.table)
    assert remote.checked == [], "object stores have no links"
