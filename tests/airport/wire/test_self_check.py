"""The fast encoders check themselves against pyarrow once per process, and are not used if they do not work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airport.raw import Raw
from airport.wire.test_frames import TYPES, array_of, round_trip
from skiway.airport import CatalogBuilder, Server
from skiway.airport.wire import encoding, sizes
from skiway.airport.wire.frames import FrameWriter
from skiway.client import AirportClient

Break = Callable[[pytest.MonkeyPatch], None]


def one_piece_per_write(patch: pytest.MonkeyPatch) -> None:
    """A writer that passes on everything it wrote for a batch as one piece."""
    take = encoding._PieceSink.take
    patch.setattr(encoding._PieceSink, "take", lambda self: [b"".join(take(self))])


def more_pieces(patch: pytest.MonkeyPatch) -> None:
    """A writer that splits each piece into halves."""
    take = encoding._PieceSink.take

    def halves(self: Any) -> list[bytes]:
        pieces = [bytes(piece) for piece in take(self)]
        return [half for piece in pieces for half in (piece[: len(piece) // 2], piece[len(piece) // 2 :])]

    patch.setattr(encoding._PieceSink, "take", halves)


def other_order_of_fields(patch: pytest.MonkeyPatch) -> None:
    """A header whose fields have different numbers."""
    field = sizes.flatbuffer_field
    patch.setattr(encoding, "_field", lambda data, table, number: field(data, table, number ^ 1))


def other_mark_of_uncompressed_buffers(patch: pytest.MonkeyPatch) -> None:
    """A reader that expects a different marker before uncompressed buffers."""
    patch.setattr(encoding, "_UNCOMPRESSED", b"\xfe" * 8)


def failing_kernel(patch: pytest.MonkeyPatch) -> None:
    """A pyarrow version without a function that the check needs."""
    patch.setattr(encoding.SparseBatches, "message", lambda _, __: (_ for _ in ()).throw(AttributeError("gone")))


LAYOUTS: list[Break] = [
    one_piece_per_write,
    more_pieces,
    other_order_of_fields,
    other_mark_of_uncompressed_buffers,
    failing_kernel,
]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which the check has not run yet."""
    monkeypatch.setattr(encoding, "self_check", encoding.SelfCheck())
    monkeypatch.setattr(encoding, "_encoded", encoding._Encoded())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("fresh")
def test_self_check_passes_with_the_installed_pyarrow(caplog: pytest.LogCaptureFixture) -> None:
    assert encoding.self_check.passes()
    assert isinstance(encoding.message_stream(pa.schema({"a": pa.int64()}), None), encoding.MessageStream)
    assert encoding.sparse_batches(pa.schema({"a": pa.int64()}), (0,)) is not None
    assert warnings(caplog) == []


@pytest.mark.usefixtures("fresh")
def test_self_check_runs_once_even_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    check = encoding._run_check
    monkeypatch.setattr(encoding, "_run_check", lambda: runs.append(1) is None and check())
    threads = [threading.Thread(target=encoding.self_check.passes) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert encoding.self_check.passes()
    assert runs == [1]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_scans_are_correct_with_another_layout_and_one_warning_is_logged(
    layout: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout(monkeypatch)
    rows = 30_000
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"name {i}" for i in range(rows)]),
            "kind": pa.array([f"kind {i % 3}" for i in range(rows)]).dictionary_encode(),
            "other": pa.array([[i] * (i % 4) for i in range(rows)], pa.list_(pa.int32())),
        }
    )
    plain = table.drop_columns(["kind"])
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table(schema=table.schema, name="with_dictionary")(lambda scan: table)
    schema.table(schema=plain.schema, name="plain")(lambda scan: plain)
    with (
        Server(builder.build(), port=0) as server,
        Raw(server.location) as raw,
        AirportClient(server.location, "demo") as db,
    ):
        assert db.scan("s.with_dictionary").read_all().equals(table)
        assert raw.scan("demo", "s", "plain").equals(plain)
        narrow = raw.scan("demo", "s", "plain", columns=[0])
    assert narrow.schema.equals(plain.schema)
    assert narrow["id"].equals(plain["id"])
    assert narrow["name"].null_count == narrow["other"].null_count == rows
    (warning,) = warnings(caplog)
    assert warning.startswith(f"pyarrow {pa.__version__} writes IPC messages in an unknown layout")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_round_trips_on_the_fallback_path(
    name: str, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_piece_per_write(monkeypatch)
    column = array_of(*TYPES[name])
    large = pa.concat_arrays([column] * (20_000 // len(column)))
    batches = [
        pa.record_batch([column], names=["v"]),
        pa.record_batch([large], names=["v"]),
        pa.record_batch([large.slice(3, 17_000)], names=["v"]),
    ]
    assert round_trip(batches, compression=compression) == batches
    assert not encoding.self_check.passes()


@pytest.mark.usefixtures("fresh")
def test_unrequested_columns_take_almost_no_space_on_the_fallback_path(monkeypatch: pytest.MonkeyPatch) -> None:
    one_piece_per_write(monkeypatch)
    rows = 50_000
    columns = [pa.array(range(rows), pa.int64()), *(pa.nulls(rows, pa.int64()) for _ in range(9))]
    batch = pa.record_batch(columns, names=[f"c{i}" for i in range(10)])
    (frame,) = FrameWriter(batch.schema).batch(batch, null_columns=tuple(range(1, 10)))
    assert len(frame) < 1.2 * batch.column(0).nbytes
