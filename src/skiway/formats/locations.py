"""Where files are: on this machine or in S3. A location is understood here, or refused, before anything is touched."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from skiway.errors import InvalidArgument, PermissionDenied

__all__ = ["Location", "Reach", "location", "web_address"]

_SCHEMES: Final = {"": "file", "file": "file", "s3": "s3", "s3a": "s3", "s3n": "s3"}
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder. `path` has no slash at its end; in S3 it is the key, else it begins at the root."""

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}" if self.scheme == "s3" else self.path

    def __truediv__(self, name: str) -> Location:
        return Location(self.scheme, self.bucket, f"{self.path}/{name}" if self.path else name)

    @property
    def name(self) -> str:
        """Its last segment."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        return Location(self.scheme, self.bucket, self.path.rpartition("/")[0])

    def is_within(self, folder: Location) -> bool:
        """Is it `folder`, or below it? On this machine also where symbolic links lead."""
        if (self.scheme, self.bucket) != (folder.scheme, folder.bucket):
            return False
        own, other = (_real(each.path) if each.scheme == "file" else each.path for each in (self, folder))
        return own == other or not other or own.startswith(f"{other.rstrip('/')}/")


def _real(path: str) -> str:
    return os.path.realpath(path)


def location(uri: str) -> Location:
    """The location that `uri` names: a path of this machine, or `file:`, `s3:`, `s3a:`, `s3n:`.

    >>> str(location("s3a://lake/sales/people/"))
    's3://lake/sales/people'
    """
    found = _SCHEME.fullmatch(uri)
    scheme, rest = (found["scheme"].lower(), found["rest"]) if found else ("", uri)
    if scheme not in _SCHEMES:
        raise _refused(uri, f"files of {scheme!r} are not read; give a path, or a file: or s3: location")
    if not rest or (_SCHEMES[scheme] == "s3" and not rest.strip("/")):
        raise _refused(uri, "it names nothing")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in uri):
        raise _refused(uri, "it holds control characters")
    if ".." in re.split(r"[/\\]", rest):
        raise _refused(uri, "'..' is not allowed in it; write out where it leads")
    return _in_s3(uri, rest) if _SCHEMES[scheme] == "s3" else _on_disk(uri, rest, bare=not scheme)


def _in_s3(uri: str, rest: str) -> Location:
    bucket, _, key = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not _BUCKET.fullmatch(bucket):
        raise _refused(uri, "it names no bucket; write s3://bucket/path")
    return Location("s3", bucket, key.strip("/"))


def _on_disk(uri: str, rest: str, *, bare: bool) -> Location:
    if not bare and rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _refused(uri, f"it is on another machine ({host}); write file:///path")
        rest = f"/{path}"
    if not bare and not rest.startswith("/"):
        raise _refused(uri, "a file: location begins at the root; write file:///path")
    return Location("file", "", os.path.abspath(rest))  # noqa: PTH100 - which leaves symbolic links alone


def _refused(uri: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"location {uri!r} is refused: {reason}", key="location.refused", location=uri)


def web_address(uri: str) -> str:
    """`uri`, checked to be the http or https address of a service; InvalidArgument otherwise."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused(uri, "a catalog service is reached by http:// or https://")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _refused(uri, "names, passwords and questions do not belong in the address; give credentials apart")
    return uri.rstrip("/")


@dataclass(frozen=True, slots=True)
class Reach:
    """The folders an operator opened to a source.

    Metadata of a table may name any file. Those on this machine are read only under `roots`, so that whoever writes
    metadata cannot have the server's own files served; in S3 the source's credentials are the limit.
    """

    roots: tuple[Location, ...]

    def check(self, place: Location) -> Location:
        """`place`, or PermissionDenied."""
        if place.scheme == "file" and not any(place.is_within(root) for root in self.roots):
            raise PermissionDenied(
                f"file {str(place)!r} is outside of what this source may read "
                f"({', '.join(map(str, self.roots)) or 'no folder of this machine'}); "
                "if it belongs to the source, add its folder to the option 'allowed-locations'",
                key="location.outside",
                location=str(place),
            )
        return place
