"""Source files: tables of other writers with one changed file are listed, planned and read."""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from formats.managed import LooseTable
from fuzz.mutation import NUMBERS, changed_bytes, changed_value
from fuzz.target import Case, Target, fault_of
from skiway.errors import Internal, SkiwayError
from skiway.formats import Source, open_source

ROWS = pa.table(
    {
        "id": pa.array(range(50), pa.int64()),
        "place": [f"place {number % 7}" if number % 5 else None for number in range(50)],
        "tags": [["a", None]] * 50,
        "at": pa.array(range(50), pa.timestamp("us")),
    }
)


class FileTarget(Target):
    """A folder with one table. A case replaces the content of one of its files."""

    kind: str

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the table."""

    @abstractmethod
    def source(self, folder: Path) -> Source:
        """Open the folder."""

    def open(self) -> None:
        self.table = self.folder / self.name
        shutil.rmtree(self.table, ignore_errors=True)
        self.table.mkdir()
        self.write(self.table)
        files = sorted(path for path in self.table.rglob("*") if path.is_file() and "crc" not in path.suffix)
        # Names of files are random, so cases name them by their order within their kind.
        self.files = sorted(files, key=lambda path: (self._role(path), path.stat().st_size, path.name))
        self.contents = {path: path.read_bytes() for path in self.files}

    def _role(self, path: Path) -> str:
        name = path.name
        return next((part for part in ("metadata.json", "snap-", ".avro", ".json", ".parquet") if part in name), name)

    def case(self, chance: Random) -> Case:
        number = chance.randrange(len(self.files))
        role, seed = self._role(self.files[number]), chance.getrandbits(48)
        if role == ".parquet":
            content = self.changed(self.contents[self.files[number]], role, Random(seed))
            return {"file": number, "role": role, "content": content}
        return {
            "file": number,
            "role": role,
            "seed": seed,
        }  # the content has the names of other files, which are random

    def changed(self, data: bytes, role: str, chance: Random) -> bytes:
        """The content of a file with a change that fits its format."""
        if role.endswith(".json") and chance.random() < 0.85:
            lines = data.decode().splitlines() if role == ".json" else [data.decode()]
            place = chance.randrange(len(lines))
            lines[place] = json.dumps(
                changed_value(json.loads(lines[place]), chance, ["id", "place", "long", "struct"])
            )
            return "\n".join(lines).encode()
        if role == ".parquet" and chance.random() < 0.7:
            return self._changed_footer(data, chance)
        return changed_bytes(data, chance)

    def _changed_footer(self, data: bytes, chance: Random) -> bytes:
        """Another length of the footer, or a change within it."""
        size = int.from_bytes(data[-8:-4], "little")
        if chance.random() < 0.1:
            return data[:-8] + (chance.choice(NUMBERS) % 2**32).to_bytes(4, "little") + data[-4:]
        body, footer = data[: -8 - size], changed_bytes(data[-8 - size : -8], chance)
        return body + footer + len(footer).to_bytes(4, "little") + data[-4:]

    def run(self, case: Case) -> str:
        path = self.files[case["file"]]
        if "content" in case:
            path.write_bytes(case["content"])
        else:
            path.write_bytes(self.changed(self.contents[path], case["role"], Random(case["seed"])))
        try:
            return self._read()
        except Internal as error:
            raise fault_of(error) or error from error
        except SkiwayError as error:
            return type(error).__name__
        except Exception as error:
            raise fault_of(error) or error from error
        finally:
            path.write_bytes(self.contents[path])

    def _read(self) -> str:
        with self.source(self.table) as source:
            for namespace in source.namespaces():
                for name in source.tables(namespace):
                    handle = source.load(namespace, name)
                    for snapshot in handle.snapshots():
                        handle.schema_at(snapshot)
                        handle.files(snapshot)
                    current = handle.current()
                    if current is not None:
                        for _ in handle.read(current):
                            pass
        return "OK"


class ParquetTarget(FileTarget):
    """A folder of Parquet files."""

    name = "parquet"

    def write(self, folder: Path) -> None:
        (folder / "t").mkdir()
        pq.write_table(ROWS, folder / "t" / "a.parquet", row_group_size=20, write_page_index=True)
        pq.write_table(ROWS.slice(0, 5), folder / "t" / "b.parquet", compression="zstd", use_dictionary=False)
        pq.write_table(ROWS.select(["id"]), folder / "t" / "c.parquet", compression="gzip", data_page_version="2.0")

    def source(self, folder: Path) -> Source:
        return open_source("parquet", str(folder))


class DeltaTarget(FileTarget):
    """A Delta table: its log, a checkpoint and data files."""

    name = "delta"

    def write(self, folder: Path) -> None:
        from deltalake import DeltaTable, write_deltalake

        place = str(folder / "t")
        write_deltalake(place, ROWS.slice(0, 20), partition_by=["place"])
        write_deltalake(place, ROWS.slice(20), mode="append")
        DeltaTable(place).create_checkpoint()
        write_deltalake(place, ROWS.slice(0, 3), mode="append")
        DeltaTable(place).delete("id = 7")

    def source(self, folder: Path) -> Source:
        return open_source("delta", str(folder), options={"delta.source": "filesystem"})


class IcebergTarget(FileTarget):
    """An Iceberg table: metadata, manifest list, manifests in Avro, and data files."""

    name = "iceberg"

    def write(self, folder: Path) -> None:
        made = LooseTable(folder, ROWS.schema, "bucket[2](id)")
        made.append(ROWS)
        made.append(ROWS.slice(0, 3))
        self.metadata = made.location

    def source(self, folder: Path) -> Source:
        return open_source("iceberg", self.metadata, options={"allowed-locations": str(folder)})


def file_targets() -> Iterator[type[FileTarget]]:
    yield from (ParquetTarget, DeltaTarget, IcebergTarget)
