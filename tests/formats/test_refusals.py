"""Tables that cannot be read correctly are rejected with the table, the file and a remedy."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from formats.pushed_filters import pushed_filter
from formats.test_contents import now
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.formats import Content, Source, TableHandle, open_source
from skiway.formats.iceberg.deletes import PLACES, deletion_vector, with_deletes
from skiway.formats.source import FILE_COLUMNS

ID = pa.table({"id": pa.array([1, 2], pa.int64())})


def folder(tmp_path: Path, **files: pa.Table) -> Path:
    (tmp_path / "t").mkdir()
    for name, table in files.items():
        pq.write_table(table, tmp_path / "t" / f"{name}.parquet")
    return tmp_path / "t"


def opened(place: Path) -> TableHandle:
    return open_source("parquet", str(place), options={"external.table-name": "t"}).load((), "t")


def test_files_with_conflicting_schemas_are_rejected_by_name(tmp_path: Path) -> None:
    place = folder(tmp_path, a=ID, b=pa.table({"id": ["text"]}))
    with pytest.raises(Unsupported, match=r"'id' is string in file '.*b\.parquet', but int64 in the files before"):
        opened(place)


def test_columns_that_differ_only_in_case_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"b\.parquet' adds column 'ID' to 'id'"):
        opened(folder(tmp_path, a=ID, b=pa.table({"ID": [1]})))


def test_paths_with_inconsistent_partitions_are_rejected(tmp_path: Path) -> None:
    for part in ("x=1", "y=1"):
        (tmp_path / "t" / part).mkdir(parents=True)
        pq.write_table(ID, tmp_path / "t" / part / "a.parquet")
    with pytest.raises(Unsupported, match=r"'y=1/a\.parquet' is partitioned by y, but 'x=1/a\.parquet' by x"):
        opened(tmp_path / "t")


def test_unsupported_type_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"column 'd' has type duration\[us\]"):
        opened(folder(tmp_path, a=pa.table({"d": pa.array([1], pa.duration("us"))})))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all, but long enough to look for its end"])
def test_error_names_the_corrupt_file(tmp_path: Path, content: bytes) -> None:
    place = folder(tmp_path, a=ID)
    (place / "b.parquet").write_bytes(content)
    with pytest.raises(PreconditionFailed, match=r"b\.parquet' is corrupt") as refused:
        opened(place)
    assert refused.value.params["file"].endswith("b.parquet")


def test_damaged_page_is_an_error(tmp_path: Path) -> None:
    place = folder(tmp_path, a=pa.table({"s": [f"text {number}" for number in range(1000)]}))
    table = opened(place)
    file = place / "a.parquet"
    data = bytearray(file.read_bytes())
    data[20:400] = bytes(380)
    file.write_bytes(data)
    stale = table.files(now(table)).set_column(6, "etag", pa.array([None], pa.string()))
    with pytest.raises(PreconditionFailed, match=r"a\.parquet'"):
        table.read(now(table), files=stale).read_all()


def test_error_names_the_missing_data_file(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ID)
    with open_source("delta", str(tmp_path)) as source:
        table = source.load((), "t")
        file = Path(table.files(now(table))["path"][0].as_py())
        file.unlink()
        with pytest.raises(PreconditionFailed, match=f"'{file}' is missing"):
            table.read(now(table)).read_all()


def test_broken_delta_log_is_rejected(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ID)
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").write_text("{nonsense")
    with open_source("delta", str(tmp_path)) as source, pytest.raises((PreconditionFailed, NotFound), match="'t' at "):
        source.load((), "t")


def test_unknown_delta_feature_is_rejected(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ID)
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["catalogManaged"],
                "writerFeatures": ["catalogManaged"],
            }
    log.write_text("\n".join(json.dumps(action) for action in actions))
    with open_source("delta", str(tmp_path)) as source, pytest.raises(Unsupported, match=r"'t'.* is catalog-managed"):
        source.load((), "t")


def test_nonexistent_delta_version_is_not_found(delta: Source) -> None:
    from dataclasses import replace

    table = delta.load((), "types")
    with pytest.raises(NotFound, match="no version 99"):
        table.files(replace(now(table), id=99))


def test_nonexistent_iceberg_snapshot_is_not_found(iceberg: Source) -> None:
    from dataclasses import replace

    table = iceberg.load(("sales",), "types")
    with pytest.raises(NotFound, match="has no snapshot 99"):
        table.files(replace(now(table), id=99))


def test_invalid_iceberg_metadata_is_rejected(tmp_path: Path, iceberg: Source) -> None:
    found = iceberg.load(("sales",), "many")
    metadata = json.loads(Path(found.metadata_location.removeprefix("file://")).read_text())
    metadata["schemas"][0]["fields"][0]["type"] = "hypercube"
    (tmp_path / "v1.metadata.json").write_text(json.dumps(metadata))
    with (
        open_source("iceberg", str(tmp_path / "v1.metadata.json")) as source,
        pytest.raises(Unsupported, match="column 'id' has type hypercube, which is not supported"),
    ):
        source.load((), tmp_path.name)


def test_files_without_ids_need_a_name_mapping(tmp_path: Path, iceberg: Source) -> None:
    found = iceberg.load(("sales",), "adopted")
    place = Path(found.metadata_location.removeprefix("file://"))
    metadata = json.loads(place.read_text())
    metadata["properties"].pop("schema.name-mapping.default")
    (tmp_path / "v1.metadata.json").write_text(json.dumps(metadata))
    options = {"allowed-locations": str(place.parents[1])}
    with open_source("iceberg", str(tmp_path / "v1.metadata.json"), options=options) as source:
        table = source.load((), tmp_path.name)
        with pytest.raises(Unsupported, match="has no field ids, and the table has no name mapping"):
            table.read(now(table)).read_all()


def test_position_deletes_apply_by_age_partition_and_path() -> None:
    def row(
        ordinal: int, content: Content, *, spec: int, part: float | None, seq: int, path: str = ""
    ) -> dict[str, object]:
        blank = dict.fromkeys([*FILE_COLUMNS.names, *PLACES.names])
        own = {"ordinal": ordinal, "content": content, "spec_id": spec, "sequence_number": seq, "row_count": 1}
        return {**blank, **own, "path": path or f"f{ordinal}", "partition": {"1000": part}}

    nan = float("nan")
    rows = [
        row(0, Content.DATA, spec=1, part=nan, seq=1),
        row(1, Content.DATA, spec=1, part=nan, seq=3),
        row(2, Content.DATA, spec=1, part=2.0, seq=1),
        row(3, Content.DATA, spec=0, part=None, seq=1),
        row(4, Content.POSITION_DELETES, spec=1, part=nan, seq=2),
        row(5, Content.EQUALITY_DELETES, spec=0, part=None, seq=2),
        {**row(6, Content.POSITION_DELETES, spec=1, part=2.0, seq=9), "path_from": b"g", "path_to": b"h"},
        {**row(7, Content.POSITION_DELETES, spec=1, part=5.0, seq=9), "referenced": "f2"},
    ]
    partition = pa.field("partition", pa.struct({"1000": pa.float64()}))
    files = pa.Table.from_pylist(rows, schema=pa.schema([*FILE_COLUMNS, partition, *PLACES]))
    found = with_deletes(files, unpartitioned={0})["deletes"].to_pylist()
    assert found[:4] == [[4, 5], [], [7, 5], [5]]


def test_damaged_deletion_vector_is_rejected() -> None:
    bitmap = BitMap64([3, 5, 1 << 33]).serialize()
    body = bytes.fromhex("d1d33964") + bitmap
    blob = len(body).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)
    assert deletion_vector(blob, file="f", rows=3).to_pylist() == [3, 5, 1 << 33]
    for damaged in (blob[:-1] + b"\0", b"\1" + blob[1:], blob[:4] + b"\0" + blob[5:]):
        with pytest.raises(PreconditionFailed, match="'f' is corrupt"):
            deletion_vector(damaged, file="f", rows=3)
    with pytest.raises(PreconditionFailed, match="has 3 rows, but the manifest says 4"):
        deletion_vector(blob, file="f", rows=4)


def test_unknown_column_error_lists_existing_columns(parquet: Source) -> None:
    table = parquet.load((), "mixed")
    with pytest.raises(InvalidArgument, match="'mixed' has no column 'none'; it has id, a, b, st"):
        table.read(now(table), columns=["none"])


def test_narrower_column_is_rejected_instead_of_truncated(iceberg: Source) -> None:
    table = iceberg.load(("sales",), "evolved")
    first = table.schema_at(table.snapshots()[0]).arrow
    with pytest.raises(Unsupported, match="'id' is int32 in the table, but int64 in file"):
        table.read(now(table), schema=first, columns=["id"]).read_all()


def test_unsupported_filter_keeps_all_rows(parquet: Source) -> None:
    table = parquet.load((), "plain")
    condition = pushed_filter("hash(id) = 1", table.schema.arrow)
    assert table.read(now(table), filter=condition).read_all().num_rows == 120
