"""Opening stores by URL: the selected backend, what is imported, and what is rejected."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import boto3
import obstore
import pytest
from sqlalchemy import create_engine, make_url, text

from skiway.errors import Internal, InvalidArgument, PreconditionFailed, Unavailable
from skiway.storage import ABSENT, FORMAT_VERSION, open_blobs, open_pointers, open_stores
from skiway.storage.pointers.memory import MemoryPointerStore
from storage.homes import AWS, Home, blob_home, pointer_home

HEAVY = ("sqlalchemy", "boto3", "obstore", "tenacity", "psycopg", "sqlite3")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_package_loads_no_backend():
    assert run(f"import sys, skiway.storage; print(*(set({HEAVY}) & set(sys.modules)))") == []


def test_opening_a_store_loads_its_own_backend_only(tmp_path):
    code = f"import sys; from skiway.storage import *; open_pointers({f'sqlite:///{tmp_path}/a.db'!r})"
    assert "boto3" not in run(f"{code}; print(*sys.modules)")
    code = "import sys; from skiway.storage import *; open_stores('memory://')"
    assert not {"boto3", "sqlalchemy"} & set(run(f"{code}; print(*sys.modules)"))


def test_one_url_opens_both_stores_if_blobs_have_a_default(tmp_path):
    for url in ("memory://", f"sqlite:///{tmp_path}/new folder/lake.db"):
        with open_stores(url) as stores:
            uri = stores.blobs.put(b"abc")
            stores.pointers.compare_and_set("/a", uri, expect=ABSENT)
            assert stores.blobs.get(stores.pointers.get("/a").blob_uri) == b"abc"
    assert (tmp_path / "new folder" / "lake.db.blobs" / uri).read_bytes() == b"abc"


def test_relative_path_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_stores("sqlite:///home/lake.db") as stores:
        monkeypatch.chdir("/")
        stores.blobs.put(b"abc")
        with ThreadPoolExecutor(4) as pool:  # opens more connections than the first one
            list(pool.map(lambda each: stores.pointers.compare_and_set(f"/{each}", "", expect=ABSENT), range(8)))
            assert list(pool.map(stores.pointers.count, [""] * 8)) == [8] * 8
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"lake.db", "lake.db.blobs"}


def test_blob_url_is_required_if_there_is_no_default():
    with pytest.raises(InvalidArgument, match="have no default blob store"):
        open_stores("postgresql://host/database")


def test_no_store_stays_open_when_the_other_cannot_be_opened(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(MemoryPointerStore, "close", lambda store: closed.append(store))
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        open_stores("memory://", (tmp_path / "file" / "blobs").as_uri())
    assert len(closed) == 1


@pytest.mark.parametrize("url", ["", "lake.db", "oracle://host/x", "SQLITE:///x.db"])
def test_unknown_scheme_is_rejected_with_the_known_ones(url):
    with pytest.raises(InvalidArgument, match="dynamodb:, memory:, postgresql:, sqlite:"):
        open_pointers(url)
    with pytest.raises(InvalidArgument, match="file:, memory:, s3:"):
        open_blobs(url)


@pytest.mark.parametrize(
    "url", ["memory://x", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/x", "sqlite:///x.db?a=b"]
)
def test_invalid_pointer_store_url_is_rejected(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=r"use (memory://|sqlite:///)"):
        open_pointers(url)


@pytest.mark.parametrize("url", ["dynamodb://", "dynamodb://a/b", "dynamodb://a?colour=red"])
def test_invalid_dynamodb_url_is_rejected(url):
    with pytest.raises(InvalidArgument, match="use dynamodb://table"):
        open_pointers(url)


@pytest.mark.parametrize(
    "url", ["memory://x", "file:relative", "file://host/path", "file:///a?b=c", "s3://b?colour=red"]
)
def test_invalid_blob_store_url_is_rejected(url):
    with pytest.raises(InvalidArgument, match=r"use (memory://|file:///|s3://)"):
        open_blobs(url)


def test_error_about_a_url_does_not_contain_its_password():
    with pytest.raises(Unavailable, match="check that the database is running") as caught:
        open_pointers("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        open_pointers("postgresqlx://me:hunter2@host/none")
    assert "hunter2" not in str(caught.value)


def test_unknown_options_are_rejected():
    for url in ("memory://", "sqlite:///x.db", "postgresql://h/d", "dynamodb://t"):
        with pytest.raises(InvalidArgument):
            open_pointers(url, options={"colour": "red"})


# --- third-party backends ---------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package with the given entry points."""

    def install(lines):
        folder = tmp_path / "other-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(lines)
        (tmp_path / "other_stores.py").write_text(
            "from skiway.storage.pointers.memory import MemoryPointerStore\n"
            "def open_it(url, *, clock, on_call, options):\n"
            "    store = MemoryPointerStore(clock=clock, on_call=on_call)\n"
            "    store.opened = (url, options)\n"
            "    return store\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_package_can_add_a_backend_with_an_entry_point(installed, clock):
    installed("[skiway.pointer_stores]\nother = other_stores:open_it\n")
    store = open_pointers("other://place", clock=clock, options={"token": "t"})
    assert store.opened == ("other://place", {"token": "t"})  # type: ignore[attr-defined]
    assert store._clock is clock


def test_package_cannot_replace_a_scheme(installed):
    installed("[skiway.pointer_stores]\nsqlite = other_stores:open_it\n")
    with pytest.raises(
        PreconditionFailed, match=r"both skiway.storage.pointers.sqlite:open_pointers and other_stores:open_it"
    ):
        open_pointers("sqlite:///x.db")


def test_built_in_backends_can_be_entry_points_too(installed):
    installed("[skiway.pointer_stores]\nmemory = skiway.storage.pointers.memory:open_pointers\n")
    assert open_pointers("memory://").count() == 0


# --- formats ----------------------------------------------------------------------------------------------------------


def set_pointer_format(home: Home, value: str) -> None:
    """Write the format version directly, bypassing the store."""
    url = make_url(home.url)
    if home.kind.startswith("dynamodb"):
        client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=url.query["endpoint"], **AWS)
        key = {"pk": {"S": "format"}, "sk": {"B": b"format"}}
        client.put_item(TableName=url.host, Item=key | {"format": {"S": value}})
        return
    schema = f"{url.query['schema']}." if home.kind == "postgresql" else ""
    url = url.difference_update_query(["schema"])
    engine = create_engine(url.set(drivername="postgresql+psycopg") if home.kind == "postgresql" else url)
    with engine.begin() as connection:
        done = connection.execute(
            text(f"UPDATE {schema}skiway_format SET version = :value WHERE id = 1"), {"value": value}
        )
        assert done.rowcount == 1
    engine.dispose()


def test_newer_pointer_format_is_rejected_and_not_changed(shared_home):
    with shared_home.pointers() as store:
        store.compare_and_set("/a", "blob", expect=ABSENT)
    set_pointer_format(shared_home, str(FORMAT_VERSION + 1))
    with pytest.raises(
        PreconditionFailed,
        match=f"has format {FORMAT_VERSION + 1}, but this version of Skiway reads up to {FORMAT_VERSION}",
    ):
        shared_home.pointers()
    set_pointer_format(shared_home, str(FORMAT_VERSION))
    with shared_home.pointers() as store:
        assert store.count() == 1


def test_pointer_format_that_is_not_a_number_is_an_internal_error(shared_home):
    shared_home.pointers().close()
    set_pointer_format(shared_home, "one")
    with pytest.raises(Internal, match="is not a number"):
        shared_home.pointers()


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_newer_blob_format_is_rejected(kind, tmp_path, server):
    blobs_home = blob_home(kind, tmp_path, server)
    with blobs_home.blobs() as store:
        obstore.put(store._objects, "skiway-format", b"2")  # type: ignore[attr-defined]
    with pytest.raises(PreconditionFailed, match="has format 2"):
        blobs_home.blobs()


def test_threads_can_open_a_new_store_concurrently(shared_home):
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(lambda _: shared_home.pointers(), range(6)))
    for number, store in enumerate(stores):
        store.compare_and_set(f"/{number}", "blob", expect=ABSENT)
    assert stores[0].count() == 6
    for store in stores:
        store.close()


@pytest.mark.full
def test_processes_can_open_a_new_store_concurrently(tmp_path, server):
    for kind in ("sqlite", "postgresql"):
        home = pointer_home(kind, tmp_path, server)
        code = f"from skiway.storage import open_pointers; print(open_pointers({home.url!r}).count())"
        processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(5)]
        assert [process.communicate()[0] for process in processes] == [b"0\n"] * 5


def test_unreachable_endpoint_is_unavailable():
    options = {"access_key_id": "test", "secret_access_key": "test"}
    with pytest.raises(Unavailable, match=r"check the address, credentials.*s3://bucket/prefix: "):
        open_blobs("s3://bucket/prefix?region=us-east-1&endpoint=http://127.0.0.1:1", options=options)


def test_missing_bucket_is_unavailable(server):
    options = {"access_key_id": "test", "secret_access_key": "test"}
    with pytest.raises(Unavailable, match="none-such"):
        open_blobs(f"s3://none-such?region=us-east-1&endpoint={server('aws')}", options=options)
