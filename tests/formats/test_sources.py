"""Sources of tables: catalogs, folders, object storage; and the errors when they cannot be reached."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.foreign_tables import make_fixtures
from formats.oracles import assert_same_rows
from formats.rest_catalog import TOKEN, serving
from formats.test_contents import ids, now
from skiway.errors import (
    Conflict,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    Unavailable,
)
from skiway.formats import Source, open_source
from skiway.formats.files import _translated
from skiway.formats.folders.parquet import ParquetTable
from skiway.formats.opening import KINDS
from storage.homes import running_aws

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", "Edsger"]})


@pytest.fixture(scope="module")
def rest(foreign_tables: Path) -> Iterator[str]:
    from pyiceberg.catalog.sql import SqlCatalog

    with (
        SqlCatalog("lake", uri=f"sqlite:///{foreign_tables}/iceberg/catalog.db") as catalog,
        serving(catalog) as address,
    ):
        yield address


def test_rest_catalog_shows_the_same_tables_as_its_database(rest: str, foreign_tables: Path, iceberg: Source) -> None:
    options = {"warehouse": str(foreign_tables / "iceberg" / "warehouse")}
    with open_source("iceberg", rest, options=options, credentials={"token": TOKEN}) as source:
        assert source.namespaces() == iceberg.namespaces()
        assert source.tables(("sales",)) == iceberg.tables(("sales",))
        table = source.load(("sales", "eu"), "partitioned")
        assert ids(table, now(table)) == list(range(72))
        with pytest.raises(NotFound, match=r"no 'sales\.nothing'"):
            source.load(("sales",), "nothing")


def test_wrong_token_and_unavailable_service_are_different_errors(rest: str) -> None:
    with open_source("iceberg", rest, credentials={"token": "wrong"}) as source:
        with pytest.raises(PreconditionFailed, match="rejected the credentials") as refused:
            source.namespaces()
        assert "wrong" not in str(refused.value)
    with (
        open_source("iceberg", "http://127.0.0.1:9", credentials={"token": TOKEN}) as source,
        pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9.* does not respond"),
    ):
        source.namespaces()


def test_catalog_metadata_cannot_point_to_local_files_of_the_server(rest: str, foreign_tables: Path) -> None:
    with (
        open_source("iceberg", rest, credentials={"token": TOKEN}) as source,
        pytest.raises(
            PermissionDenied, match=r"outside of the folders that this source may read .*'allowed-locations'"
        ),
    ):
        source.load(("sales",), "types")
    options = {"allowed-locations": f"/nowhere, {foreign_tables}/iceberg"}
    with open_source("iceberg", rest, options=options, credentials={"token": TOKEN}) as source:
        table = source.load(("sales",), "many")
        assert ids(table, now(table)) == list(range(12))


def test_folder_of_iceberg_tables_is_a_source(foreign_tables: Path, iceberg: Source) -> None:
    with open_source("iceberg", f"file://{foreign_tables}/iceberg/warehouse") as source:
        assert source.namespaces() == [("sales",), ("sales.eu",)]  # PyIceberg maps both to the same folder
        table = source.load(("sales",), "types")
        assert_same_rows(
            table.read(now(table)).read_all(), iceberg.load(("sales",), "types").read(now(table)).read_all()
        )


def test_metadata_file_is_a_table(iceberg: Source) -> None:
    place = iceberg.load(("sales",), "many").metadata_location
    with open_source("iceberg", place) as source:
        assert (source.namespaces(), source.tables(())) == ([()], ["many"])
        table = source.load((), "many")
        assert ids(table, now(table)) == list(range(12))
    named = {"external.namespace": "a.b", "external.table-name": "c"}
    with open_source("iceberg", place, options=named) as source:
        assert (source.namespaces(), source.tables(("a", "b"))) == ([("a", "b")], ["c"])


def test_version_hint_selects_the_current_metadata(tmp_path: Path, iceberg: Source) -> None:
    found = iceberg.load(("sales",), "many")
    versions = sorted(Path(found.metadata_location.removeprefix("file://")).parent.glob("*.metadata.json"))
    folder = tmp_path / "t" / "metadata"
    folder.mkdir(parents=True)
    for number, file in enumerate(versions[:6]):
        shutil.copy(file, folder / f"v{number}.metadata.json")

    def snapshots() -> int:
        with open_source("iceberg", str(tmp_path)) as source:
            return len(source.load((), "t").snapshots())

    assert snapshots() == 5
    (folder / "version-hint.text").write_text("5")
    assert snapshots() == 5
    (folder / "v4.metadata.json").unlink()
    (folder / "version-hint.text").write_text("3\n")
    assert snapshots() == 3
    (folder / "version-hint.text").write_text("nonsense")
    with pytest.raises(PreconditionFailed, match="does not contain a version number") as caught:
        snapshots()
    assert "nonsense" not in str(caught.value), "the file may contain anything"


def test_two_metadata_files_of_one_version_are_ambiguous(tmp_path: Path, iceberg: Source) -> None:
    current = Path(iceberg.load(("sales",), "many").metadata_location.removeprefix("file://"))
    folder = tmp_path / "t" / "metadata"
    folder.mkdir(parents=True)
    for name in ("00007-a.metadata.json", "00007-b.metadata.json"):
        shutil.copy(current, folder / name)
    with open_source("iceberg", str(tmp_path)) as source, pytest.raises(Conflict, match="several metadata files"):
        source.load((), "t")


def test_only_visible_parquet_files_in_the_root_are_tables(tmp_path: Path) -> None:
    for name in ("people.parquet", "_draft.parquet", ".hidden.parquet"):
        pq.write_table(PEOPLE, tmp_path / name)
    (tmp_path / "readme.txt").write_text("no table")
    with open_source("parquet", str(tmp_path)) as source:
        assert source.tables(()) == ["people"]


def test_unchanged_listing_creates_no_snapshot(tmp_path: Path) -> None:
    def fresh_source() -> Source:
        return open_source("parquet", str(tmp_path))

    (tmp_path / "t").mkdir()
    pq.write_table(PEOPLE.slice(0, 2), tmp_path / "t" / "1.parquet")
    first = fresh_source().load((), "t")
    (one,) = first.snapshots()
    assert (one.id, one.parent_id) == (1, None)
    assert fresh_source().load((), "t").snapshots([one]) == []
    assert fresh_source().load((), "t").current([one]) == one
    pq.write_table(PEOPLE.slice(2), tmp_path / "t" / "2.parquet")
    second = fresh_source().load((), "t")
    (two,) = second.snapshots([one])
    assert (two.id, two.parent_id) == (2, 1)
    assert second.current([one]) == two
    assert ids(second, two) == [1, 2, 3]
    with pytest.raises(NotFound, match="listing 1 of table 't' can no longer be read"):
        second.files(one)


def test_older_listing_is_readable_while_its_files_exist(tmp_path: Path) -> None:
    def table() -> ParquetTable:
        found = open_source("parquet", str(tmp_path)).load((), "t")
        assert isinstance(found, ParquetTable)
        return found

    (tmp_path / "t").mkdir()
    pq.write_table(PEOPLE.slice(0, 2), tmp_path / "t" / "1.parquet")
    (one,) = table().snapshots()
    files = table().files(one)
    etags = dict(zip(files["path"].to_pylist(), files["etag"].to_pylist(), strict=True))
    pq.write_table(PEOPLE.slice(2).append_column("more", pa.array([True])), tmp_path / "t" / "2.parquet")
    older = table().as_listed(one, etags)
    assert older.schema.arrow.names == PEOPLE.schema.names
    assert ids(older, one) == [1, 2]
    with pytest.raises(NotFound, match="listing 1 of table 't' can no longer be read"):
        table().as_listed(one, etags | {"another": "file"})
    pq.write_table(PEOPLE, tmp_path / "t" / "1.parquet")
    with pytest.raises(NotFound, match="some of its files were changed or deleted"):
        table().as_listed(one, etags)


def test_file_changed_since_its_listing_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(PEOPLE, tmp_path / "t" / "1.parquet")
    table = open_source("parquet", str(tmp_path)).load((), "t")
    pq.write_table(PEOPLE.slice(1), tmp_path / "t" / "1.parquet")
    with pytest.raises(Conflict, match=r"1\.parquet' has changed since"):
        table.read(now(table)).read_all()


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """Options for a source in the empty S3 bucket `lake`."""
    with running_aws("lake") as endpoint:
        yield {
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
        }


def access(bucket: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options and the credentials of a source in the bucket."""
    secret = ("s3.access-key-id", "s3.secret-access-key")
    return {key: value for key, value in bucket.items() if key not in secret}, {key: bucket[key] for key in secret}


def in_bucket(bucket: dict[str, str]) -> Any:
    from pyarrow.fs import S3FileSystem

    host = bucket["s3.endpoint"].removeprefix("http://")
    return S3FileSystem(
        access_key="key", secret_key="secret", endpoint_override=host, scheme="http", region="us-east-1"
    )


def test_decompression_bomb_in_s3_is_rejected(bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from skiway.formats.readers import pages

    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1 << 20)
    options, credentials = access(bucket)
    whole = {"use_dictionary": False, "data_page_size": 1 << 30, "max_rows_per_page": 1 << 30}
    zeros = pa.table({"n": pa.array([0] * (1 << 18))})
    pq.write_table(zeros, "lake/bombs/t/a.parquet", filesystem=in_bucket(bucket), compression="zstd", **whole)
    with open_source("parquet", "s3://lake/bombs", options=options, credentials=credentials) as source:
        table = source.load((), "t")
        with pytest.raises(LimitExceeded, match=r"'s3://lake/bombs/t/a.parquet': a page takes 2097\d\d\d bytes"):
            table.read(now(table)).read_all()


def test_tables_in_s3_are_read_like_local_ones(bucket: dict[str, str], tmp_path: Path) -> None:
    from deltalake import write_deltalake
    from pyiceberg.catalog.sql import SqlCatalog

    options, credentials = access(bucket)
    rows = make_fixtures.without(make_fixtures.rows(0, 20), "ls")  # PyIceberg writes a NULL list as an empty one
    disk = in_bucket(bucket)
    for part in (0, 1):
        pq.write_table(rows.slice(part * 10, 10), f"lake/files/people/part={part}/a b.parquet", filesystem=disk)
    storage = {"AWS_ENDPOINT_URL": bucket["s3.endpoint"], "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    storage |= {"AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "conditional_put": "etag"}
    write_deltalake("s3://lake/delta/people", PEOPLE, storage_options=storage)
    with SqlCatalog("x", uri=f"sqlite:///{tmp_path}/c.db", warehouse="s3://lake/ice", **bucket) as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.people", rows.schema).append(rows)
    with open_source("parquet", "s3://lake/files", options=options, credentials=credentials) as source:
        table = source.load((), "people")
        assert table.schema.arrow.names[-1] == "part"
        assert_same_rows(table.read(now(table), columns=rows.column_names).read_all(), rows)
        assert table.snapshots([now(table)]) == []
    with open_source("delta", "s3a://lake/delta", options=options, credentials=credentials) as source:
        table = source.load((), "people")
        assert_same_rows(table.read(now(table)).read_all(), PEOPLE)
    with open_source("iceberg", "s3://lake/ice", options=options, credentials=credentials) as source:
        table = source.load(("sales",), "people")
        assert_same_rows(table.read(now(table)).read_all(), rows)
    with pytest.raises(NotFound, match="nothing at 's3://lake/nothing'"):
        open_source("delta", "s3://lake/nothing", options=options, credentials=credentials)


def test_number_that_looks_like_a_status_is_not_a_status() -> None:
    assert isinstance(
        _translated("s3://lake/a", OSError("AWS Error NETWORK_CONNECTION: no answer within 297.694033ms")), Unavailable
    )
    assert isinstance(_translated("s3://lake/a", OSError("HTTP status 403 Forbidden")), PreconditionFailed)


def test_unresponsive_s3_is_unavailable() -> None:
    options = {"s3.endpoint": "http://127.0.0.1:9", "s3.region": "us-east-1"}
    with pytest.raises(Unavailable, match="'s3://lake/files' cannot be read"):
        open_source("parquet", "s3://lake/files", options=options)


def test_unknown_kind_error_lists_existing_kinds() -> None:
    with pytest.raises(
        InvalidArgument, match="'hudi'; known kinds are csv, delta, glue, hive, iceberg, json, parquet, unity"
    ):
        open_source("hudi", "/tmp")
    assert set(KINDS) == {"csv", "iceberg", "glue", "hive", "delta", "json", "parquet", "unity"}


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"glue", "hive", "unity"}))
def test_address_without_tables_is_reported(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotFound, match="nothing at"):
        open_source(kind, str(tmp_path / "nothing"))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"csv", "json", "glue", "hive", "unity"}))
def test_unknown_table_or_namespace_is_not_found(foreign_tables: Path, kind: str) -> None:
    with open_source(kind, str(foreign_tables / kind)) as source:
        with pytest.raises(NotFound, match=r"no table 'sales\.none'"):
            source.load(("sales",), "none")
        with pytest.raises(NotFound, match="namespace 'none'"):
            source.tables(("none",))


def test_credentials_are_not_shown() -> None:
    from skiway.formats.opening import SourceRequest

    assert "hush" not in repr(SourceRequest("iceberg", "http://x", credentials={"token": "hush"}))
