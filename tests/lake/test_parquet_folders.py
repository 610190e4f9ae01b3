"""A server that has read a Parquet folder before reads it like one that opens it for the first time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import opened_lake
from skiway.airport.wire.frames import BatchReader
from skiway.client import AirportClient
from skiway.errors import SkiwayError
from skiway.model import flight_pb2 as flight


def _write(folder: Path, name: str, ids: list[int], **more: pa.Array) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids), **more}), folder / name)


def _remove(folder: Path) -> None:
    (folder / "2.parquet").unlink()


def _replace(folder: Path) -> None:
    _write(folder, "2.parquet", [20, 21, 22])


def _remove_and_add(folder: Path) -> None:
    (folder / "2.parquet").unlink()
    _write(folder, "4.parquet", [40], note=pa.array(["new"]))


def _add(folder: Path) -> None:
    _write(folder, "4.parquet", [40])


def _remove_all(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def _read(db: AirportClient) -> Any:
    try:
        return db.scan("root.t").read_all().sort_by("id").to_pydict()
    except SkiwayError as error:
        return error.message.partition("[")[0]


CHANGES: dict[Callable[[Path], None], list[int] | None] = {
    _remove: [1, 3],
    _replace: [1, 3, 20, 21, 22],
    _remove_and_add: [1, 3, 40],
    _add: [1, 2, 3],  # as of the last synchronisation
    _remove_all: None,
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_warm_server_reads_a_changed_folder_like_a_cold_one(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = tmp_path / "files" / "t"
    for number in (1, 2, 3):
        _write(folder, f"{number}.parquet", [number])
    with opened_lake(tmp_path / "lake") as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        with lake.client("parquet") as warm, lake.served() as other:
            assert warm.scan("root.t").read_all()["id"].to_pylist() == [1, 2, 3]
            change(folder)
            with AirportClient(other, "parquet") as cold:
                expected = _read(cold)
            assert _read(warm) == expected
            ids = CHANGES[change]
            assert isinstance(expected, str) if ids is None else expected["id"] == ids


def test_a_server_redeems_the_ticket_of_another_that_has_seen_the_change(tmp_path: Path) -> None:
    folder = tmp_path / "files" / "t"
    for number in (1, 2):
        _write(folder, f"{number}.parquet", [number])
    with opened_lake(tmp_path / "lake") as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        with lake.client("parquet") as warm, lake.served() as other:
            assert warm.scan("root.t").read_all().num_rows == 2
            (folder / "2.parquet").unlink()
            with AirportClient(other, "parquet") as planner:
                (endpoint,) = planner.endpoints("root.t")
            with grpc.insecure_channel(lake.location.removeprefix("grpc://")) as channel:
                stream = channel.unary_stream("/arrow.flight.protocol.FlightService/DoGet")
                ticket = flight.Ticket(ticket=endpoint.ticket).SerializeToString()
                batches = list(BatchReader(iter(stream(ticket, metadata=[("airport-catalog", "parquet")]))))
    assert [batch["id"].to_pylist() for batch in batches] == [[1]]
