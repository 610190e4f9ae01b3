from __future__ import annotations

from pathlib import Path

import pytest

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.formats.files import Reach
from skiway.security.source_access import location, web_address


@pytest.mark.parametrize(
    ("uri", "meant"),
    [
        ("/data/lake/", "/data/lake"),
        ("file:///data/lake", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("file://localhost/data", "/data"),
        ("s3://lake", "s3://lake/"),
        ("s3a://lake/a b/c=d%20e", "s3://lake/a b/c=d%20e"),
        ("S3N://lake/x/", "s3://lake/x"),
        ("gs://my_lake.example/x/", "gs://my_lake.example/x"),
        ("abfss://lake-1@skiway.dfs.core.windows.net/a b", "abfss://lake-1@skiway.dfs.core.windows.net/a b"),
    ],
)
def test_location_is_parsed(uri: str, meant: str) -> None:
    assert str(location(uri)) == meant


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "",
            "s3://",
            "s3:lake",
            "s3:///key",
            "s3://UPPER/x",
            "s3://user:password@lake/x",
            "http://host/x",
            "gopher:x",
            "gs://",
            "gs:lake",
            "gs://a@lake/x",
            "gs://lake/a/./b",
            "gcs://lake/x",
        ),
        *(
            "/data/../etc",
            "file:///data/..",
            "s3://lake/a/../b",
            "file:relative",
            "file://other/data",
            "/a\0b",
            "/a\nb",
        ),
        *(
            "abfss://lake/x",
            "abfss://lake@skiway/x",
            "abfss://lake@skiway.dfs.core.windows.net.example.com/x",
            "abfss://lake@example.com#.dfs.core.windows.net/x",
            "abfss://lake@a.b.dfs.core.windows.net/x",
            "abfss://Lake@skiway.dfs.core.windows.net/x",
            "abfss://lake--1@skiway.dfs.core.windows.net/x",
            "abfss://lake:secret@skiway.dfs.core.windows.net/x",
            "abfss://lake@skiway.dfs.core.windows.net/a/../b",
            "abfs://lake@skiway.dfs.core.windows.net/x",
        ),
        "..\\windows",
    ],
)
def test_invalid_location_is_rejected(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid location"):
        location(uri)


@pytest.mark.parametrize("uri", ["ftp://host", "http://", "http://user:secret@host", "http://host/?q=1", "file:///x"])
def test_web_address_is_rejected(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid location"):
        web_address(uri)


def test_symlinks_do_not_lead_outside_the_allowed_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    reach = Reach((location(str(tmp_path / "inside")),))
    assert reach.check(location(str(tmp_path / "inside" / "file")))
    for beyond in ("inside/link/file", "outside/file", "inside-too/file"):
        with pytest.raises(PermissionDenied, match=rf"outside of the folders .* \({tmp_path}/inside\); if it belongs"):
            reach.check(location(str(tmp_path / beyond)))
    with pytest.raises(PermissionDenied, match=r"\(no local folder\)"):
        Reach(()).check(location(str(tmp_path / "inside" / "file")))
