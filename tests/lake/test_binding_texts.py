"""Bindings, which clients send back: what they contain, and texts that are not from this server."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from skiway.errors import ConstraintViolation, InvalidArgument, SkiwayError
from skiway.formats.schemas import with_id
from skiway.lake.reading import state
from skiway.lake.reading.columns import Columns
from skiway.lake.reading.opened_tables import _snapshot
from skiway.lake.reading.state import Binding, PendingCreate, pack, unpack
from skiway.lake.writing.inserting import Incoming
from skiway.metastore.records.realm import timestamp
from skiway.model import v1

WANTED = pa.schema([with_id(pa.field("a", pa.int16()), 1)])


@pytest.mark.parametrize("wanted", [None, pa.schema([]), WANTED])
def test_bindings_survive_the_client(wanted: pa.Schema | None) -> None:
    binding = Binding("t", "4-9ab0", wanted)
    assert Binding.parse(str(binding)) == binding
    assert Binding.split(str(binding))[:2] == ("t", "4-9ab0")
    assert (Binding.split(str(binding))[2] is None) == (wanted is None)


def test_forms_of_bindings() -> None:
    assert str(Binding("t", "c")) == "t@c"
    assert str(Binding("t", "c", pa.schema([]))) == "t@c@"
    assert str(Binding("t", "c", WANTED)).startswith("t@c@e")


@pytest.mark.parametrize("packed", ["x", "!!!!", "eJw", pack(b"no schema"), pack(WANTED.serialize().to_pybytes()[:20])])
def test_bindings_of_others_are_rejected(packed: str) -> None:
    with pytest.raises(InvalidArgument, match="the table's binding is not from this server: DETACH") as refused:
        Binding.parse(f"t@c@{packed}")
    assert refused.value.key == "table.binding"


def test_packed_bytes_are_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(1000)
    assert unpack(pack(data)) == data
    assert len(unpack(pack(bytes(5 << 20)))) == 4 << 20
    monkeypatch.setattr(state, "_MAX_BYTES", 10)
    assert unpack(pack(data)) == data[:10]


@pytest.mark.parametrize("replace", [True, False])
def test_definitions_of_pending_tables_survive_the_client(replace: bool) -> None:
    pending = PendingCreate(WANTED.serialize().to_pybytes(), replace, "text")
    found = PendingCreate.of(pending.binding())
    assert found == pending
    assert (found.schema, found.properties) == (WANTED, {"comment": "text"})
    assert PendingCreate(b"", replace).properties == {}
    assert PendingCreate.of("t@c") is None


def test_definitions_of_others_are_rejected() -> None:
    prefix = PendingCreate(b"", False).binding().partition("eJ")[0]
    for text in (PendingCreate(b"no schema", False).binding(), f"{prefix}x", f"{prefix}{pack(b'other')}"):
        with pytest.raises(InvalidArgument, match="CREATE the table again"):
            PendingCreate.of(text)


def field(name: str, number: int, of: pa.DataType, *, nullable: bool = True) -> pa.Field:
    return with_id(pa.field(name, of, nullable=nullable), number)


KNOWN = Columns("1", pa.schema([field("a", 1, pa.int64()), field("b", 2, pa.string())]))


def incoming(given: pa.Schema, *now: pa.Field) -> Incoming:
    return Incoming("t", given, known=KNOWN, now=pa.schema(now or list(KNOWN.stored)))


def test_rows_are_stored_under_the_current_names() -> None:
    given = pa.schema({"B": pa.string(), "rowid": pa.int64(), "a": pa.int64()})
    found = incoming(given, field("renamed", 2, pa.string()), field("a", 1, pa.int64()))
    assert found.names == ["renamed", "a"]
    rows = pa.record_batch([["x"], [9], [7]], schema=given)
    announced = found.announced(rows)
    assert announced.schema.names == ["b", "a"]
    stored = found.stored(announced)
    assert stored.to_pylist() == [{"renamed": "x", "a": 7}]


def test_columns_of_an_insert_must_exist() -> None:
    with pytest.raises(InvalidArgument, match="table 't' has no column 'c'; it has a, b"):
        incoming(pa.schema({"c": pa.int64()}))
    with pytest.raises(SkiwayError, match="column 'a' was dropped"):
        incoming(pa.schema({"a": pa.int64()}), field("b", 2, pa.string()))


def test_null_is_rejected_where_the_column_must_have_values_now() -> None:
    found = incoming(pa.schema({"a": pa.int64()}), field("a", 1, pa.int64(), nullable=False))
    assert found.announced(pa.record_batch({"a": [1]})).num_rows == 1
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: t\.a") as refused:
        found.announced(pa.record_batch({"a": [1, None]}))
    assert refused.value.params == {"column": "a"}


@pytest.mark.parametrize("parent", [None, 0, 6])
def test_records_of_snapshots_are_read_completely(parent: int | None) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    record = v1.Snapshot(
        snapshot_id=7,
        upstream_created_at=timestamp(moment),
        parent_snapshot_id=parent,
        sequence_number=3,
        schema_id=4,
        summary={"a": "b"},
        manifest_list="m",
        format_metadata={"digest": b"d"},
    )
    found = _snapshot(record)
    assert (found.id, found.created_at, found.parent_id) == (7, moment, parent)
    assert (found.sequence_number, found.schema_id, found.summary) == (3, 4, {"a": "b"})
    assert found.manifest_list == "m"
