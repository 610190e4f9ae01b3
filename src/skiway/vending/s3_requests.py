"""Requests to S3 that clients want to be signed, and which of them an access permits.

Everything that is not known to be harmless is refused: hosts, operations, parameters and headers. A signature is as good as
the keys of the server for the one request that it covers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit
from xml.etree import ElementTree

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.vending.access import TableAccess

__all__ = ["ObjectRequest", "S3Request", "S3Service", "permitted"]


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request as the client will send it. `body` is known only for requests that delete several objects."""

    method: str
    uri: str
    region: str
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """A request that is permitted: its host, its decoded path and parameters, and its headers in lower case."""

    method: str
    host: str
    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    key: str
    body: str | None = None


@dataclass(frozen=True, slots=True)
class S3Service:
    """The addresses of the S3 service that the warehouse is in: those of `endpoint`, or those of AWS."""

    endpoint: str = ""

    def bucket_and_key(self, uri: str) -> tuple[SplitResult, str, str]:
        """The parsed URI, the bucket, and the key, which is empty if the request is about the bucket.

        The bucket is the first part of the host or of the path. Which one it is must be certain: a request to
        `other.s3.amazonaws.com/lake/…` is about the bucket `other`.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError:
            raise _invalid(uri, "it is not a valid address") from None
        if parts.scheme not in ("http", "https") or parts.username or parts.password or parts.fragment:
            raise _invalid(uri, "it must be an address of S3, without a user and a fragment")
        if re.search(r"[\x00-\x20\x7f\\]", uri):
            raise _invalid(uri, "it contains spaces, control characters or backslashes")
        path = _decoded(parts.path, uri)
        bucket = self._bucket_in_host(parts.scheme, (parts.hostname or "").lower(), port)
        if bucket is None:
            raise PermissionDenied(
                f"requests to {(parts.hostname or '')[:200]!r} are not signed: the table is in the S3 service "
                f"{self.endpoint or 'of AWS'}",
                key="signing.host",
            )
        if bucket:
            return parts, bucket, path.removeprefix("/")
        bucket, _, key = path.removeprefix("/").partition("/")
        return parts, bucket, key

    def _bucket_in_host(self, scheme: str, host: str, port: int | None) -> str | None:
        """The bucket that the host names, empty if it names none; None if the host is not one of the service."""
        if self.endpoint:
            own = urlsplit(self.endpoint)
            service = (own.hostname or "").lower()
            usual = {"http": 80, "https": 443}
            if (scheme, port or usual[scheme]) != (own.scheme, own.port or usual.get(own.scheme)):
                return None
            if host == service:
                return ""
            return host.removesuffix(f".{service}") if host.endswith(f".{service}") else None
        found = _AWS_HOST.fullmatch(host)
        return None if found is None or scheme != "https" else found["bucket"] or ""


_AWS_HOST: Final = re.compile(
    r"(?:(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\.)?s3(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-\d)?\.amazonaws\.com(?:\.cn)?"
)


def permitted(request: S3Request, access: TableAccess, service: S3Service) -> ObjectRequest:
    """The request, if `access` permits it; raises `PermissionDenied` or `InvalidArgument` otherwise."""
    parts, bucket, key = service.bucket_and_key(request.uri)
    parameters = _parameters(parts.query, request.uri)
    operation = _operation(request.method, is_object=bool(key), names=frozenset(parameters))
    if operation is None:
        what = f"parameters {', '.join(sorted(parameters))[:200]}" if parameters else "no parameters"
        raise PermissionDenied(
            f"{request.method[:20]} requests on {'objects' if key else 'the bucket'} with {what} are not signed: read, write "
            "and delete files of the table only",
            key="signing.operation",
        )
    if operation.writes and not access.writes:
        raise PermissionDenied(
            f"{request.method} requires the permission table.write, and {access.caller} may only read the table: ask for the "
            "privilege write",
            key="signing.read_only",
        )
    if bucket != access.folder.bucket:
        raise _outside(f"bucket {bucket[:100]!r}", access)
    headers = _headers(request.headers)
    named = [key] if key else _named_keys(operation, parameters, request)
    for each in named:
        if not _is_inside(each, access):
            raise _outside(f"{each[:300]!r}", access)
    path = _decoded(parts.path, request.uri) or "/"
    body = request.body if operation.has_body else None
    return ObjectRequest(request.method, parts.netloc.lower(), path, parameters, headers, named[0], body)


# -- operations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of S3, recognized by its method, whether it is about an object, and the parameters that it requires."""

    method: str
    is_object: bool
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset({"x-id"})
    writes: bool = True
    has_body: bool = False


_LISTING: Final = frozenset(
    {"x-id", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"}
)
_OPERATIONS: Final = (
    _Operation("GET", True, writes=False),
    _Operation("HEAD", True, writes=False),
    _Operation("GET", False, frozenset({"list-type", "prefix"}), _LISTING, writes=False),
    _Operation("PUT", True),
    _Operation("PUT", True, frozenset({"partNumber", "uploadId"})),
    _Operation("POST", True, frozenset({"uploads"})),
    _Operation("POST", True, frozenset({"uploadId"})),
    _Operation("DELETE", True),
    _Operation("DELETE", True, frozenset({"uploadId"})),
    _Operation("POST", False, frozenset({"delete"}), has_body=True),
)


def _operation(method: str, *, is_object: bool, names: frozenset[str]) -> _Operation | None:
    for each in _OPERATIONS:
        if (each.method, each.is_object) == (method, is_object) and names - each.optional == each.required:
            return each
    return None


_XML_DECLARATION: Final = re.compile(
    r"""\A\s*<\?xml\s+version=["']1\.0["'](\s+encoding=["']utf-8["'])?(\s+standalone=["'](yes|no)["'])?\s*\?>""",
    re.IGNORECASE,
)


def _named_keys(operation: _Operation, parameters: Mapping[str, str], request: S3Request) -> list[str]:
    """The keys that a request on the bucket is about: the prefix of a listing, or the objects to delete."""
    if not operation.has_body:
        return [parameters["prefix"]]
    return _keys_to_delete(request.body)


def _keys_to_delete(body: str | None) -> list[str]:
    invalid = InvalidArgument(
        "the body of a request that deletes objects is missing, or is not that of DeleteObjects: send it as `body`",
        key="signing.body",
    )
    if not body:
        raise invalid
    text = _XML_DECLARATION.sub("", body, count=1)
    if "<!" in text or "<?" in text:  # declarations could define entities, and stores may read instructions differently
        raise invalid
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - without declarations there is nothing to expand
    except (ElementTree.ParseError, ValueError):
        raise invalid from None
    space = root.tag.removesuffix("Delete")
    if space not in ("", "{http://s3.amazonaws.com/doc/2006-03-01/}"):
        raise invalid
    objects = [each for each in root if each.tag == f"{space}Object"]
    flags = [each for each in root if each.tag == f"{space}Quiet"]
    if not objects or len(flags) > 1 or len(objects) + len(flags) != len(root):
        raise invalid
    # Exactly one Key: a VersionId would delete an old version, and of two keys, stores may take either.
    named = [each[0] for each in objects if [inner.tag for inner in each] == [f"{space}Key"]]
    found = [each.text or "" for each in named]
    blank = [root, *objects]
    if len(named) != len(objects) or len(set(found)) != len(found) or any(map(len, (*named, *flags))):
        raise invalid
    if any(each.attrib or (each.tail or "").strip() for each in root.iter()):
        raise invalid
    if any((each.text or "").strip() for each in blank):
        raise invalid
    return found


# -- parts of requests ------------------------------------------------------------------------------------------------

_AMZ_HEADERS: Final = re.compile(
    r"x-amz-(date|content-sha256|decoded-content-length|trailer|sdk-checksum-algorithm|checksum-[a-z0-9-]+"
    r"|server-side-encryption(-[a-z0-9-]+)?|storage-class|request-payer|expected-bucket-owner|user-agent|meta-[a-z0-9_.-]+)"
)


def _headers(given: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """The headers by name in lower case; raises for those that make S3 do more than the operation says."""
    found: dict[str, str] = {}
    for name, values in given.items():
        lower = name.lower()
        if lower in found or any(re.search(r"[\x00-\x1f\x7f]", value) for value in values):
            raise InvalidArgument(f"header {name[:100]} appears twice or is invalid", key="signing.header")
        if lower.startswith("x-amz-") and not _AMZ_HEADERS.fullmatch(lower):
            raise PermissionDenied(
                f"requests with the header {lower[:100]} are not signed: send the request without it",
                key="signing.header",
            )
        found[lower] = ",".join(value.strip() for value in values)
    return found


def _parameters(query: str, uri: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in filter(None, query.split("&")):
        name, _, value = each.partition("=")
        name, value = _decoded(name, uri), _decoded(value, uri)
        if name in found:
            raise _invalid(uri, f"parameter {name[:100]!r} appears twice")
        found[name] = value
    return found


def _decoded(text: str, uri: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _invalid(uri, "it is not UTF-8") from None


def _is_inside(key: str, access: TableAccess) -> bool:
    """Whether the key is below the folder. Some stores resolve `..`, so it is refused."""
    plain = not re.search(r"[\x00-\x1f\x7f\\]", key) and not {".", ".."} & set(key.split("/"))
    return plain and bool(access.folder.path) and key.startswith(f"{access.folder.path}/")


def _outside(what: str, access: TableAccess) -> PermissionDenied:
    return PermissionDenied(
        f"{what} is not in the folder of the table, {access.folder}: only requests about files of the table are signed",
        key="signing.outside",
    )


def _invalid(uri: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"the URI {uri[:300]!r} cannot be signed: {reason}", key="signing.uri", field="uri")
