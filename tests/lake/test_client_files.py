"""Which files DuckDB's client may read itself, decided without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.airport import Request, ScanOptions
from skiway.formats import WholeFile
from skiway.formats.schemas import field_id, with_id
from skiway.lake.reading.columns import Columns
from skiway.lake.reading.table import file_calls, may_read_files, scan_mode
from skiway.model import v1


def field(name: str, number: int, of: pa.DataType = pa.int64()) -> pa.Field:  # noqa: B008
    return with_id(pa.field(name, of), number)


STORED = pa.schema([field("a", 1), field("b", 2, pa.string())])
COLUMNS = Columns("c1", STORED)


def request(peer: str = "ipv4:127.0.0.1:5", **headers: str) -> Request:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Request(metadata=pairs, connection=SimpleNamespace(peer=lambda: peer))


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("server", ScanOptions(columns=["a"]), False),
        ("client", ScanOptions(columns=["a"]), True),
        ("auto", ScanOptions(columns=["a"]), True),
        ("client", ScanOptions(columns=[]), True),
        ("client", ScanOptions(), False),
        ("client", ScanOptions(columns=["a", "rowid"]), False),
    ],
)
def test_mode_and_columns_decide(mode: Any, options: ScanOptions, expected: bool) -> None:
    assert may_read_files(mode, options, request()) == expected
    assert not may_read_files(mode, options, request("ipv4:10.0.0.1:5"))


@pytest.mark.parametrize(
    ("caller", "is_local"),
    [
        (request("unix:/tmp/s"), True),
        (request("ipv4:127.8.0.1:5"), True),
        (request("ipv6:[::1]:5"), True),
        (request("ipv4:128.0.0.1:5"), False),
        (request("ipv6:[2001:db8::1]:5"), False),
        (request(""), False),
        (request(forwarded="for=10.0.0.1"), False),
        (request(x_forwarded_for="10.0.0.1"), False),
        (request(x_real_ip="10.0.0.1"), False),
        (request(other="10.0.0.1"), True),
    ],
)
def test_client_is_local_unless_a_proxy_calls_for_another(caller: Request, is_local: bool) -> None:
    assert may_read_files("client", ScanOptions(columns=["a"]), caller) == is_local


def test_server_reads_by_default() -> None:
    assert scan_mode(v1.Catalog()) == "server"
    assert scan_mode(v1.Catalog(properties={"scan.mode": "auto"})) == "auto"


class Handle:
    """A table of which each file has its own columns."""

    def __init__(self, **files: pa.Schema) -> None:
        self._files = files

    def plain_files(self, _snapshot: Any, files: pa.Table) -> list[WholeFile] | None:
        names = files["path"].to_pylist()
        found = [
            WholeFile(f"/w/{name}", {field_id(each) or 0: each for each in self._files[name]}, {}, lambda: 0)
            for name in names
        ]
        return None if "deleted" in names else found


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (STORED, True),
        (pa.schema([field("more", 3), *reversed(STORED)]), True),
        (pa.schema([field("a", 1)]), False),
        (pa.schema([field("a", 1), field("b", 3, pa.string())]), False),
        (pa.schema([field("a", 1), field("B", 2, pa.string())]), False),
        (pa.schema([field("a", 1, pa.int32()), field("b", 2, pa.string())]), False),
    ],
)
def test_files_must_have_the_same_ids_names_and_types(schema: pa.Schema, expected: bool) -> None:
    assert (calls(["f", "other"], other=schema) is not None) == expected


def calls(*parts: list[str], columns: Columns = COLUMNS, **files: pa.Schema) -> list[Any] | None:
    handle = cast(Any, Handle(**{"f": STORED, "g": STORED, "x*": STORED, "deleted": STORED, **files}))
    tables = [pa.table({"path": pa.array(part, pa.string())}) for part in parts]
    return file_calls(columns, handle, cast(Any, None), tables)


def test_each_part_is_a_call_of_the_client() -> None:
    found = calls(["f"], ["g", "f"])
    assert found is not None
    assert [(each.name, *each.args) for each in found] == [
        ("read_parquet", ["/w/f"]),
        ("read_parquet", ["/w/g", "/w/f"]),
    ]
    assert [each.named for each in found] == [{"hive_partitioning": False}] * 2


def test_client_gets_no_files_that_it_would_read_differently() -> None:
    assert calls() == []
    assert calls(["f"], []) is None, "a part without files"
    assert calls(["f"], ["x*"]) is None, "a path that is a pattern"
    assert calls(["f"], ["deleted"]) is None
    assert calls(["f", "h"], h=pa.schema([field("a", 1)])) is None
    assert calls(["f"], columns=Columns("c2", STORED, pa.schema([field("a", 1, pa.int16())]))) is None
    odd = pa.schema([*STORED, field("t", 3, pa.time64("ns"))])
    assert calls(["f"], columns=Columns("c3", odd), f=odd) is None, "a type that the client does not read alike"
