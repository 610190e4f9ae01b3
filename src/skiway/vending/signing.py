"""The signer: it signs requests to S3 with the keys of the server, one at a time, if the caller's access permits them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

from skiway.clock import Clock, utc_now
from skiway.errors import InvalidArgument, PermissionDenied
from skiway.vending.access import TableAccess
from skiway.vending.credentials import S3Keys
from skiway.vending.s3_requests import ObjectRequest, S3Request, S3Service, permitted
from skiway.vending.sigv4 import TIME_FORMAT, signed_headers

__all__ = ["SignedRequest", "Signer"]

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
