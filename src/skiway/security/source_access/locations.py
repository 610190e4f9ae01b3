"""Locations of files on this machine or in object stores, validated before anything is accessed."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from skiway.errors import InvalidArgument
from skiway.security.redaction import without_secrets

_SCHEMES: Final = {"": "file", "file": "file", "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfss": "abfss"}
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_BUCKETS: Final = {
    "s3": (re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"), "bucket name; write s3://bucket/path"),
    "gs": (re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"), "bucket name; write gs://bucket/path"),
    "abfss": (
        re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}@[a-z0-9]{3,24}\.dfs\.core\.windows\.net"),
        "container and account; write abfss://container@account.dfs.core.windows.net/path",
    ),
}
"""The valid names of buckets by scheme, and how an error describes them."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder. `path` has no trailing slash; in an object store it is the key, on disk an absolute path.

    In Azure, the bucket is a container and the host of its account: `lake@account.dfs.core.windows.net`.
    """

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.bucket}/{self.path}"

    def __truediv__(self, name: str) -> Location:
        return Location(self.scheme, self.bucket, f"{self.path}/{name}" if self.path else name)

    @property
    def name(self) -> str:
        """The last segment of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        return Location(self.scheme, self.bucket, self.path.rpartition("/")[0])

    def real(self) -> Location:
        """The location without symbolic links; object stores have none."""
        return Location("file", "", _without_links(self.path)) if self.scheme == "file" else self

    def is_below(self, folder: Location) -> bool:
        """Is it `folder`, or below it, by name?"""
        if (self.scheme, self.bucket) != (folder.scheme, folder.bucket):
            return False
        return self.path == folder.path or not folder.path or self.path.startswith(f"{folder.path.rstrip('/')}/")

    def is_within(self, folder: Location) -> bool:
        """Is it `folder`, or below it? On disk, symbolic links are resolved first."""
        real = self.real()
        # A folder in a path without links has none itself, so it need not be resolved.
        return real.is_below(folder) or real.is_below(folder.real())


def _without_links(path: str) -> str:
    """What `os.path.realpath` returns. Linux knows it for what exists, in a tenth of the time."""
    if sys.platform != "linux":
        return os.path.realpath(path)
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:  # unless it is a link to nowhere, only what exists above it can contain links
        above, _, name = path.rpartition("/")
        return os.path.realpath(path) if os.path.lexists(path) else f"{_without_links(above or '/').rstrip('/')}/{name}"
    except OSError:
        return os.path.realpath(path)
    try:
        found = os.readlink(f"/proc/self/fd/{opened}")  # noqa: PTH115 - Path takes longer than the rest
        # Something that has just been deleted has another name there.
        return os.path.realpath(path) if found.endswith(" (deleted)") else found
    except OSError:
        return os.path.realpath(path)
    finally:
        os.close(opened)


def location(uri: str) -> Location:
    """Parse `uri`: a path on this machine, or a `file:`, `s3:`, `s3a:`, `s3n:`, `gs:` or `abfss:` location.

    Sources can be neither in `gs:` nor in `abfss:`; `SourceAccess` refuses them.

    >>> str(location("s3a://lake/sales/people/"))
    's3://lake/sales/people'
    """
    # A relative path depends on the working directory, so it is parsed every time.
    return _parsed(uri) if uri.startswith("/") or ":" in uri else _parsed.__wrapped__(uri)


@lru_cache(maxsize=2_000)  # each call of a table needs two or three of them, at 20 µs each
def _parsed(uri: str) -> Location:
    found = _SCHEME.fullmatch(uri)
    scheme, rest = (found["scheme"].lower(), found["rest"]) if found else ("", uri)
    if scheme == "thrift":
        raise _invalid(
            uri,
            "it is the address of a Hive Metastore, which needs a connector of kind hive",
        )
    if scheme not in _SCHEMES:
        raise _invalid(
            uri,
            f"unsupported scheme {scheme!r}; give a path, or a file: or s3: location; a warehouse can "
            "also be at a gs: or abfss: location",
        )
    if not rest or (_SCHEMES[scheme] != "file" and not rest.strip("/")):
        raise _invalid(uri, "it is empty")
    if _CONTROL_CHARACTER.search(uri):
        raise _invalid(uri, "it contains control characters")
    if ".." in re.split(r"[/\\]", rest):
        raise _invalid(uri, "'..' is not allowed; write the resolved path")
    if _SCHEMES[scheme] == "file":
        return _on_disk(uri, rest, bare=not scheme)
    return _in_bucket(uri, _SCHEMES[scheme], rest)


def _in_bucket(uri: str, scheme: str, rest: str) -> Location:
    bucket, _, key = rest.removeprefix("//").partition("/")
    valid, wanted = _BUCKETS[scheme]
    if not rest.startswith("//") or not valid.fullmatch(bucket):
        raise _invalid(uri, f"it has no valid {wanted}")
    if "." in key.split("/"):
        raise _invalid(uri, "'.' is not allowed as a part of the path, because some clients remove it")
    return Location(scheme, bucket, key.strip("/"))


def _on_disk(uri: str, rest: str, *, bare: bool) -> Location:
    if not bare and rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _invalid(uri, f"it is on another host ({host}); write file:///path")
        rest = f"/{path}"
    if not bare and not rest.startswith("/"):
        raise _invalid(uri, "the path of a file: location must be absolute; write file:///path")
    if rest.startswith("/"):
        rest = f"/{rest.lstrip('/')}"  # two slashes would survive normalization
    return Location("file", "", os.path.abspath(rest))  # noqa: PTH100 - Path.resolve would follow symbolic links


def _invalid(uri: str, reason: str) -> InvalidArgument:
    shown = without_secrets(uri)
    return InvalidArgument(f"invalid location {shown!r}: {reason}", key="location.refused", location=shown)


def web_address(uri: str) -> str:
    """Return `uri` if it is the http or https address of a service; raise InvalidArgument otherwise."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid(uri, "the address of a catalog service begins with http:// or https://")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _invalid(
            uri, "user names, passwords and queries are not allowed in the address; pass credentials separately"
        )
    return uri.rstrip("/")
