"""Which files sources may read: below the roots of the operator, and never the server's own files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.upstreams import iceberg, parquet
from skiway.config import Settings, load, replaced
from skiway.errors import InvalidArgument, PermissionDenied, PreconditionFailed
from skiway.formats import Source, open_source
from skiway.formats.files import Reach
from skiway.runtime.source_access import source_access_of
from skiway.security.source_access import Location, SourceAccess, location


def refused() -> Any:
    return pytest.raises(PermissionDenied, check=lambda error: error.key == "location.refused")


def server(home: Path, **settings: str) -> SourceAccess:
    """The policy of a server with these settings; two underscores stand for a dot."""
    return source_access_of(_settings(home, **settings), home)


def _settings(home: Path, **settings: str) -> Settings:
    return load(home, flags={key.replace("__", "."): value for key, value in settings.items()})


def opened(uri: Path | str, kind: str = "parquet", **how: Any) -> Source:
    return open_source(kind, str(uri), **how)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return parquet(tmp_path / "data", "people", id=[1, 2])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_folders_are_open_in_dev_mode_and_closed_otherwise(home: Path, data: Path, tmp_path: Path) -> None:
    assert opened(data, access=server(home)).tables(()) == ["people"]
    tokens = str(tmp_path / "tokens.toml")
    with refused():
        opened(data, access=server(home, auth__mode="token", auth__tokens__file=tokens))
    listed = server(home, auth__mode="token", sources__local_roots=f"/nowhere; {data}")
    assert opened(data, access=listed).tables(()) == ["people"]
    with refused():
        opened(data.parent, access=listed)


@pytest.mark.parametrize("mode", ["dev", "token"])
def test_credentials_of_the_server_are_not_lent_by_default(home: Path, mode: str) -> None:
    assert not server(home, auth__mode=mode).ambient_credentials
    assert server(home, auth__mode=mode, sources__ambient_credentials="true").ambient_credentials


def test_roots_are_closed_even_in_dev_mode_if_others_are_listed(home: Path, data: Path) -> None:
    with refused():
        opened(data, access=server(home, sources__local_roots="/nowhere"))


@pytest.mark.parametrize(
    "path",
    [
        "/etc",
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/self/root/etc",
        "/dev/sda",
        "/run/secrets",
        "/var/run/x",
        "/var/log/syslog",
        "/usr/share",
        "//etc/passwd",
        "/root/.aws/credentials",
        "/home/ada/.ssh/id_rsa",
        "~/.config/gcloud/x.json",
    ],
)
def test_system_folders_and_hidden_folders_of_users_are_never_open(home: Path, path: str) -> None:
    with refused():
        server(home).check(location(os.path.expanduser(path)))  # noqa: PTH111 - keeps the two slashes


def test_memory_used_as_a_disk_is_open(home: Path) -> None:
    assert server(home).check(location("/dev/shm/data"))
    assert server(home, sources__local_roots="/dev/shm/data").check(location("/dev/shm/data/x"))


def test_all_files_of_the_server_are_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = {
        "warehouse__uri": f"{tmp_path}/lake",
        "kv__url": f"sqlite:///{tmp_path}/db/pointers.db",
        "blob__url": f"file://{tmp_path}/blobs",
        "secrets__file__directory": f"{tmp_path}/keys",
        "auth__tokens__file": f"{tmp_path}/tokens.toml",
        "audit__directory": f"{tmp_path}/audited",
        "log__file": f"{tmp_path}/skiway.log",
    }
    access = server(home, **settings)
    for name in (
        "home",
        "home/x",
        "lake/a/b",
        "db/pointers.db",
        "db/pointers.db-wal",
        "blobs",
        "keys/k",
        "tokens.toml",
    ):
        with refused():
            access.check(location(f"{tmp_path}/{name}"))
    for name in ("audited", "skiway.log"):
        with refused():
            access.check(location(f"{tmp_path}/{name}"))
    assert access.check(location(f"{tmp_path}/other"))
    assert access.hidden(location(str(tmp_path))) >= {"home", "lake", "blobs", "keys", "tokens.toml"}


def test_examples_in_the_home_are_open(home: Path) -> None:
    access = server(home, auth__mode="token", auth__tokens__file=str(home / "tokens.toml"))
    assert access.check(location(f"{home}/examples/a.parquet"))
    with refused():
        access.check(location(f"{home}/sources/x"))
    (home / "demo.json").touch()
    demo = server(home, auth__mode="token", auth__tokens__file=str(home / "tokens.toml"))
    assert demo.check(location(f"{home}/sources/x"))
    (home / "examples").mkdir()
    (home / "examples" / "link").symlink_to(home / "secrets")
    for name in ("examples-too", "secrets", "examples/link/key"):
        with refused():
            access.check(location(f"{home}/{name}"))


def test_links_are_resolved_before_the_check(home: Path, data: Path, tmp_path: Path) -> None:
    access = server(home, sources__local_roots=str(data))
    outside = parquet(tmp_path / "outside", "secret", id=[1])
    (data / "folder").symlink_to(outside)
    (data / "file.parquet").symlink_to(outside / "secret.parquet")
    for uri in (data / "folder", data / "folder" / "secret.parquet", data / "file.parquet"):
        with refused():
            opened(uri, access=access).load((), uri.name.removesuffix(".parquet"))
    (tmp_path / "alias").symlink_to(data)
    assert access.check(location(f"{tmp_path}/alias/people.parquet")) == location(f"{data}/people.parquet")


def test_paths_without_links_are_those_of_the_standard_library(data: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(data)
    (tmp_path / "relative").symlink_to("alias/people.parquet")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "else")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (data / "up").symlink_to("..")
    (data / "old (deleted)").touch()
    paths = [
        "",
        "/",
        "data",
        "data/people.parquet",
        "alias",
        "alias/people.parquet",
        "relative",
        "missing",
        "alias/missing/too",
    ]
    paths += [
        "dangling",
        "dangling/deeper",
        "circle",
        "circle/x",
        "alias/up/alias/up",
        "data/people.parquet/x",
        "alias/up/missing",
        "alias/old (deleted)",
    ]
    for path in (f"{tmp_path}/{each}".rstrip("/") for each in paths):
        assert Location("file", "", path).real().path == os.path.realpath(path), path
    for path in ("/", "/missing", "/proc/self/fd"):
        assert Location("file", "", path).real().path == os.path.realpath(path), path


def test_path_of_a_file_that_is_deleted_meanwhile_is_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, readlink = data / "people.parquet", os.readlink

    def after_deletion(given: str) -> str:
        path.unlink()
        monkeypatch.undo()
        return readlink(given)

    monkeypatch.setattr(os, "readlink", after_deletion)
    assert location(str(path)).real() == location(str(path))
    assert not path.exists()


def test_relative_locations_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert location("data").path == str(tmp_path / name / "data")
        assert location(str(tmp_path / "data")).path == str(tmp_path / "data")


def test_folder_that_becomes_a_link_after_the_check_is_not_followed(
    home: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(data / "moving", "people", id=[1])
    parquet(tmp_path / "outside", "people", id=[2])
    files = opened(data, access=server(home, sources__local_roots=str(data)))._files  # type: ignore[attr-defined]
    assert files.read(f"{data}/moving/people.parquet")
    check = Reach.check

    def replaced(reach: Reach, place: Location) -> Location:
        real = check(reach, place)
        (data / "moving").rename(data / "moved")
        (data / "moving").symlink_to(tmp_path / "outside")
        return real

    monkeypatch.setattr(Reach, "check", replaced)
    with pytest.raises(PreconditionFailed, match="missing"):
        files.open(f"{data}/moving/people.parquet")


def test_each_account_has_its_own_folder(home: Path, data: Path) -> None:
    for account in ("a1", "a2"):
        parquet(data / account, "people", id=[1])
    access = server(home, sources__local_roots=f"{data}/{{account}}")
    assert opened(data / "a1", access=access, account="a1").tables(()) == ["people"]
    for uri, account in ((data / "a2", "a1"), (data, "a1"), (data / "a1", ""), (data / "{account}", "a1")):
        with refused():
            opened(uri, access=access, account=account)
    for account in ("..", "a/b"):
        with pytest.raises(InvalidArgument, match="cannot be part of a path"):
            opened(data, access=access, account=account)


@pytest.mark.parametrize("root", ["/etc", "/proc/1", "{home}", "{home}/warehouse/x", "{home}/../home"])
def test_a_root_that_is_never_open_stops_the_start(home: Path, root: str) -> None:
    with pytest.raises(InvalidArgument, match=r"sources.local_roots"):
        server(home, sources__local_roots=root.format(home=home))


def test_allowed_locations_only_narrow(home: Path, tmp_path: Path) -> None:
    roots = f"{tmp_path}/a; {tmp_path}/b"
    for name in "abc":
        parquet(tmp_path / name, "people", id=[1])
    access = server(home, sources__local_roots=roots)
    wide = {"allowed-locations": f"{tmp_path}, /"}
    source = opened(tmp_path / "a", access=access, options=wide)
    files = source._files  # type: ignore[attr-defined]
    assert files.find(f"{tmp_path}/b/people.parquet")
    with refused():
        files.find(f"{tmp_path}/c/people.parquet")
    with pytest.raises(PermissionDenied, match="allowed-locations"):
        opened(tmp_path / "a", access=access)._files.find(f"{tmp_path}/b/people.parquet")  # type: ignore[attr-defined]
    in_s3 = opened(tmp_path / "a", access=access, options={"allowed-locations": "s3://lake/open"})._files  # type: ignore[attr-defined]
    assert in_s3.reach.check(location("s3://lake/open/x"))
    with pytest.raises(PermissionDenied, match="allowed-locations"):
        in_s3.reach.check(location("s3://lake/other"))


def test_warehouse_and_blobs_in_s3_are_closed(home: Path) -> None:
    access = server(home, warehouse__uri="s3://lake/tables", blob__url="s3://lake/blobs?region=eu")
    for uri in ("s3://lake/tables", "s3a://lake/tables/a/x", "s3://lake//tables/", "s3://lake/blobs/1"):
        with refused():
            access.check(location(uri))
    deep = server(home, warehouse__uri="s3://lake/prod/tables")
    for uri in ("s3://lake/prod//tables/a", "s3a://lake/prod///tables//a"):  # Hadoop removes empty segments
        with refused():
            deep.check(location(uri))
    for uri in ("s3://lake/", "s3://lake/tables-too", "s3://other/tables"):
        assert access.check(location(uri))
    assert access.hidden(location("s3://lake/")) == {"tables", "blobs"}
    for uri in ("s3://lake/./tables", "s3://lake/x/../tables"):
        with pytest.raises(InvalidArgument, match="not allowed"):
            location(uri)


def test_sql_catalog_does_not_read_foreign_files_as_metadata(home: Path, tmp_path: Path) -> None:
    """The location is checked before anything reads it, and no error quotes the content of a file."""
    catalog = iceberg(tmp_path / "data")
    catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    (tmp_path / "secret.json").write_text('{"format-version": "planted-secret"}')
    (tmp_path / "data" / "mine.json").write_text('{"format-version": "planted-secret"}')
    access = server(home, sources__local_roots=f"{tmp_path}/data")
    options = {"allowed-locations": f"{tmp_path}/data"}
    source = opened(f"sqlite:///{tmp_path}/data/catalog.db", "iceberg", access=access, options=options)

    def error_for(metadata: str) -> Any:
        with closing(sqlite3.connect(tmp_path / "data" / "catalog.db")) as database, database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ?", [metadata])
        with pytest.raises(Exception, match=r".") as caught:
            source.load(("sales",), "orders")
        return caught.value

    for uri in (f"{tmp_path}/secret.json", f"file://{tmp_path}/secret.json", "/etc/passwd", f"{home}/skiway.toml"):
        assert error_for(uri).key == "location.refused"
    own = error_for(f"{tmp_path}/data/mine.json")
    assert (own.key, "planted-secret" in own.message) == ("file.corrupt", False)  # `detail` stays on the server
    source.close()


@pytest.mark.parametrize(
    "uri", ["sqlite:///{0}?mode=rw", "sqlite:///file:{0}?uri=true", "sqlite://host/{0}", "sqlite:"]
)
def test_sqlite_url_has_no_parameters(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InvalidArgument, match="SQLite"):
        opened(uri.format(tmp_path / "catalog.db"), "iceberg")


@pytest.mark.parametrize(
    ("old", "permitted"),
    [("public", {"8.8.8.8"}), ("private", {"8.8.8.8", "10.0.0.1"}), ("any", {"8.8.8.8", "10.0.0.1"})],
)
def test_old_setting_of_addresses_still_works(home: Path, old: str, permitted: set[str]) -> None:
    settings = _settings(home, reconciler__source_addresses=old)
    assert [each.replaced_by for each in replaced(settings)] == ["sources.addresses"]
    access = source_access_of(settings, home)
    for host in ("8.8.8.8", "10.0.0.1", "169.254.169.254"):
        if host in permitted:
            assert access.check_url(f"https://{host}")
        else:
            with pytest.raises(PermissionDenied, match=r"sources\.addresses"):
                access.check_url(f"https://{host}")
    newer = source_access_of(_settings(home, reconciler__source_addresses=old, sources__addresses="loopback"), home)
    with pytest.raises(PermissionDenied):
        newer.check_url("https://8.8.8.8")


def test_addresses_are_public_outside_of_dev_mode(home: Path) -> None:
    access = server(home, auth__mode="token", auth__tokens__file=str(home / "tokens.toml"))
    assert access.check_url("https://8.8.8.8")
    for url in ("http://127.0.0.1:8181", "https://10.0.0.1"):
        with pytest.raises(PermissionDenied):
            access.check_url(url)
    assert server(home).check_url("http://127.0.0.1:8181")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("default/sales={home}/x", "overlaps"),
        ("default/sales={home}/..", r"'\.\.' is not allowed"),
        ("default/sales=/etc/tables", "overlaps"),
        ("default/sales=/", "account/catalog="),
        ("sales=/srv/x", "account/catalog="),
        ("default/sales=relative", "account/catalog="),
    ],
)
def test_approved_locations_are_apart_from_the_files_of_the_server(home: Path, location: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        server(home, warehouse__locations=location.format(home=home))


def test_approved_locations_are_closed_to_connectors(home: Path, tmp_path: Path) -> None:
    access = server(home, warehouse__locations=f"default/sales={tmp_path}/sales; default/s3=s3://bucket/sales")
    for uri in (f"{tmp_path}/sales/orders", "s3://bucket/sales/orders"):
        with refused():
            access.check(location(uri))


def test_a_server_folder_inside_a_root_is_not_part_of_the_source(tmp_path: Path) -> None:
    for name in ("people", "home/warehouse/secret"):
        (tmp_path / "data" / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), tmp_path / "data" / name / "1.parquet")
    access = server(tmp_path / "data" / "home", sources__local_roots=str(tmp_path / "data"))
    assert opened(tmp_path / "data", access=access).tables(()) == ["people"]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_local_folder_needs_no_addresses(home: Path, tmp_path: Path, kind: str) -> None:
    folder, rows = tmp_path / kind, pa.table({"id": [1, 2]})
    options: dict[str, str] = {}
    if kind == "delta":
        deltalake.write_deltalake(str(folder / "people"), rows)
    elif kind == "iceberg":
        iceberg(folder).create_table("sales.people", schema=rows.schema)
        options = {"iceberg.source": "filesystem"}
    else:
        parquet(folder, "people", id=[1, 2])
    access = server(home, auth__mode="token", sources__local_roots=str(folder), sources__addresses="hive.example.org")
    with opened(folder, kind, options=options, access=access) as source:
        (namespace,) = source.namespaces()
        (table,) = source.tables(namespace)
        assert source.load(namespace, table).schema.arrow.names == ["id"]
