"""The signer: it signs requests to S3 with the keys of the server, one at a time, if the caller's access permits them.

Everything that is not known to be harmless is refused: hosts, operations, parameters and headers. A signature is as good as
the keys of the server for the one request that it covers.

Signatures are those of AWS Signature Version 4.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit
from xml.etree import ElementTree

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.formats import Location
from skiway.foundation.clock import Clock, utc_now
from skiway.vending.credentials import S3Keys, TableAccess

ALGORITHM: Final = "AWS4-HMAC-SHA256"
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_SAFE: Final = "-_.~"


def signed_headers(
    keys: S3Keys,
    *,
    method: str,
    path: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    region: str,
    at: datetime,
) -> Mapping[str, str]:
    """The headers to sign, in lower case, together with `authorization`.

    `path` and `parameters` are decoded. `headers` are all that is signed: they include `host` and `x-amz-content-sha256`.
    """
    moment = at.strftime(TIME_FORMAT)
    signed = {**headers, "x-amz-date": moment}
    if keys.session_token:
        signed["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            quote(path, safe=f"/{_SAFE}"),
            "&".join(f"{name}={value}" for name, value in sorted(_encoded(parameters))),
            *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
            "",
            names,
            signed["x-amz-content-sha256"],
        ]
    )
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    to_sign = f"{ALGORITHM}\n{moment}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), sha256).digest()
    signature = hmac.new(key, to_sign.encode(), sha256).hexdigest()
    credential = f"{keys.access_key_id}/{scope}"
    return {
        **signed,
        "authorization": f"{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}",
    }


def _encoded(parameters: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(quote(name, safe=_SAFE), quote(value, safe=_SAFE)) for name, value in parameters.items()]


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
    alike = (each for each in _OPERATIONS if (each.method, each.is_object) == (request.method, bool(key)))
    operation = next((each for each in alike if parameters.keys() - each.optional == each.required), None)
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
    # A request on the bucket is about objects to delete, or about the prefix of a listing.
    named = [key] if key else _keys_to_delete(request.body) if operation.has_body else [parameters["prefix"]]
    for each in named:
        if not _is_inside(each, access.folder):
            raise _outside(f"{each[:300]!r}", access)
        if operation.writes and access.written is not None and not _is_inside(each, access.written):
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


_XML_DECLARATION: Final = re.compile(
    r"""\A\s*<\?xml\s+version=["']1\.0["'](\s+encoding=["']utf-8["'])?(\s+standalone=["'](yes|no)["'])?\s*\?>""",
    re.IGNORECASE,
)


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
    named = [entry[0] for entry in objects if [inner.tag for inner in entry] == [f"{space}Key"]]
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


def _is_inside(key: str, folder: Location) -> bool:
    """Whether the key is below the folder. Some stores resolve `..`, so it is refused."""
    plain = not re.search(r"[\x00-\x1f\x7f\\]", key) and not {".", ".."} & set(key.split("/"))
    return plain and bool(folder.path) and key.startswith(f"{folder.path}/")


def _outside(what: str, access: TableAccess) -> PermissionDenied:
    return PermissionDenied(
        f"{what} is not in the folder of the table, {access.written or access.folder}: only requests about files of the table are signed",
        key="signing.outside",
    )


def _invalid(uri: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"the URI {uri[:300]!r} cannot be signed: {reason}", key="signing.uri", field="uri")


UNSIGNED: Final = "UNSIGNED-PAYLOAD"
MAX_SKEW: Final = timedelta(minutes=5)
"""How far the time of a request may be from that of the server: S3 accepts a signature for 15 minutes after it."""

_PAYLOAD: Final = re.compile(r"UNSIGNED-PAYLOAD|STREAMING-UNSIGNED-PAYLOAD-TRAILER|[0-9a-f]{64}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The headers that the client adds to its request, and the key of the object, for the audit trail."""

    headers: Mapping[str, str]
    key: str


class Signer:
    """Signs requests to one S3 service. `keys` returns the current keys of the server."""

    def __init__(self, keys: Callable[[], S3Keys], service: S3Service, *, clock: Clock = utc_now) -> None:
        self._keys, self._service, self._clock = keys, service, clock

    def sign(self, request: S3Request, access: TableAccess) -> SignedRequest:
        """Sign a request; raises `PermissionDenied` or `InvalidArgument` if the access does not permit it."""
        if not _REGION.fullmatch(request.region):
            raise InvalidArgument(f"region {request.region[:40]!r} is not the name of a region", key="signing.region")
        wanted = permitted(request, access, self._service)
        at = self._time(wanted.headers.get("x-amz-date"))
        covered = {name: value for name, value in wanted.headers.items() if name.startswith("x-amz-")}
        covered |= {"host": wanted.host, "x-amz-content-sha256": _payload(wanted)}
        signed = signed_headers(
            self._keys(),
            method=wanted.method,
            path=wanted.path,
            parameters=wanted.parameters,
            headers=covered,
            region=request.region,
            at=at,
        )
        # Clients add these headers to their own, so those that they have already are not repeated.
        added = {name: value for name, value in signed.items() if name != "host" and wanted.headers.get(name) != value}
        return SignedRequest(added, wanted.key)

    def _time(self, given: str | None) -> datetime:
        """The time of the signature. A time in the future would prolong it."""
        now = self._clock()
        if given is None:
            return now
        try:
            at = datetime.strptime(given, TIME_FORMAT).replace(tzinfo=UTC)
        except ValueError:
            raise InvalidArgument(
                "header x-amz-date is not a time, such as 20260131T235959Z", key="signing.time"
            ) from None
        if abs(at - now) > MAX_SKEW:
            raise PermissionDenied(
                f"header x-amz-date differs by more than {MAX_SKEW.seconds} seconds from the time of the server: correct the clock "
                "of the client",
                key="signing.time",
            )
        return at


def _payload(request: ObjectRequest) -> str:
    """The hash of the body that the signature covers. A body that was checked must not be replaced."""
    given = request.headers.get("x-amz-content-sha256")
    if request.body is not None:
        digest = sha256(request.body.encode()).hexdigest()
        if given not in (None, digest):
            raise PermissionDenied(
                "header x-amz-content-sha256 is not the hash of the body: leave it out", key="signing.body"
            )
        return digest
    if given is None:
        return UNSIGNED
    if not _PAYLOAD.fullmatch(given):
        raise InvalidArgument(
            "header x-amz-content-sha256 is neither a hash nor UNSIGNED-PAYLOAD: clients without keys cannot sign parts of a "
            "body",
            key="signing.body",
        )
    return given
