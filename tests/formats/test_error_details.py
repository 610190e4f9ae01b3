"""Details of errors: short, on one line, and only for the operator; no message quotes what is in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

import scope
from formats.managed import LooseTable
from formats.test_damage import ROWS, places, read_all
from skiway.errors import PreconditionFailed, SkiwayError
from skiway.formats import open_source
from skiway.formats.files import corrupt, first_lines
from skiway.formats.iceberg.metadata import read_metadata

PLANTED = "planted-secret"
ABOUT_LOCATIONS = ("location.outside", "file.missing")
"""They name a file, which may be one that another file refers to."""


def spoiled(document: Any) -> Iterator[str]:
    """The document as text, in which one value or the name of one value is replaced."""
    for holder, key in list(places(document)):
        original = holder[key]
        for other in (PLANTED, {PLANTED: PLANTED}, [PLANTED], 10**30):
            holder[key] = other
            yield json.dumps(document)
        if isinstance(holder, dict):
            del holder[key]
            holder[PLANTED] = original
            yield json.dumps(document)
            del holder[PLANTED]
        holder[key] = original


def error_of(kind: str, uri: Path, name: str) -> SkiwayError | None:
    """The error of reading a table; anything but our own errors would be a fault of the server."""
    with open_source(kind, str(uri), options={"allowed-locations": str(uri.parents[1])}) as source:
        try:
            read_all(source, name)
        except SkiwayError as error:
            return error
    return None


def assert_quotes_nothing(errors: list[SkiwayError | None], *, at_least: int) -> None:
    found = [each for each in errors if each is not None]
    assert len(found) >= at_least
    for error in found:
        if error.key not in ABOUT_LOCATIONS:
            assert PLANTED not in f"{error.message} {error.params}"
    assert any(PLANTED in error.detail for error in found), "the operator learns it"


WHOLE = (PLANTED, f'"{PLANTED}"', f'{{"{PLANTED}": 1}}', f'{{"format-version": "{PLANTED}"}}')


def test_errors_quote_no_metadata_of_iceberg(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, ROWS.schema, "bucket[2](id)")
    table.append(ROWS)
    document = json.loads(Path(table.location.removeprefix("file://")).read_text())
    place = tmp_path / "damaged" / "v1.metadata.json"
    place.parent.mkdir()
    errors = []
    for text in [*WHOLE, *list(spoiled(document))[:: 1 if scope.ALL else 15]]:
        place.write_text(text)
        errors.append(error_of("iceberg", place, "damaged"))
    assert_quotes_nothing(errors, at_least=15)


def test_errors_quote_no_metadata_of_managed_tables(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    errors: list[SkiwayError | None] = []
    for number, text in enumerate(WHOLE):
        place = f"{table.metadata.location}/metadata/{number + 9}-damaged.metadata.json"
        table.files.write(place, text.encode())
        with pytest.raises(PreconditionFailed, match="is corrupt") as caught:
            read_metadata(table.files, place)
        errors.append(caught.value)
    assert_quotes_nothing(errors, at_least=len(WHOLE))


def test_errors_quote_no_log_of_delta(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "lake" / "t"), ROWS)
    log = tmp_path / "lake" / "t" / "_delta_log" / f"{0:020}.json"
    lines = log.read_text().splitlines()
    texts = [
        "\n".join([*lines[:number], text, *lines[number + 1 :]])
        for number, line in enumerate(lines)
        for text in spoiled(json.loads(line))
    ]
    errors = []
    for text in [*WHOLE, *texts[:: 1 if scope.ALL else 7]]:
        log.write_text(text)
        errors.append(error_of("delta", tmp_path / "lake", "t"))
    assert_quotes_nothing(errors, at_least=10)


@pytest.mark.parametrize("millis", [10**30, -(10**30), "soon"])
def test_commit_of_delta_at_an_impossible_time_has_the_time_of_its_file(tmp_path: Path, millis: Any) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), ROWS)
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = millis
    log.write_text("\n".join(map(json.dumps, actions)))
    with open_source("delta", str(tmp_path)) as source:
        (snapshot,) = source.load((), "t").snapshots()
    assert abs(snapshot.created_at.timestamp() - log.stat().st_mtime) < 1


@pytest.mark.parametrize("content", [PLANTED.encode(), b"PAR1" + PLANTED.encode() * 10 + b"\x1e\0\0\0PAR1"])
def test_errors_quote_no_parquet_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lake" / "t").mkdir(parents=True)
    (tmp_path / "lake" / "t" / "a.parquet").write_bytes(content)
    error = error_of("parquet", tmp_path / "lake", "t")
    assert isinstance(error, PreconditionFailed)
    assert PLANTED not in f"{error.message} {error.params}"


def test_detail_has_the_first_three_lines() -> None:
    assert first_lines("one\n\n  two  \nthree\nfour") == "one; two; three"
    assert first_lines(ValueError("one")) == "one"
    assert first_lines("") == ""


def test_long_detail_is_shortened() -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(400))
    assert first_lines(text) == text[:300]
    assert corrupt("s3://b/f", text).detail == text[:300]
    assert str(corrupt("s3://b/f", text)).startswith("file 's3://b/f' is corrupt; restore it")
