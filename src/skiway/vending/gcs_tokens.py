"""Access tokens of Google Cloud for single tables: downscoped tokens with a Credential Access Boundary.

Google's token exchange replaces a token of the server by one that has only the rights within the boundary. Google enforces
it. A new token expires when that of the server does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from skiway.formats.object_stores import GoogleToken
from skiway.foundation import extras
from skiway.foundation.clock import Clock, utc_now
from skiway.vending.credentials import Sessions, TableAccess, TemporaryCredentials, not_issued

with extras.needed("gcs", "vended credentials for Google Cloud Storage"):
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request
    from google.oauth2.sts import Client


TOKEN_ENDPOINT: Final = "https://sts.googleapis.com/v1/token"  # noqa: S105 - an address
_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a type
_READ: Final = "inRole:roles/storage.objectViewer"
_WRITE: Final = "inRole:roles/storage.objectUser"
_TIMEOUT_S: Final = 10
_RENEWED: Final = timedelta(minutes=30)


def access_boundary(access: TableAccess) -> dict[str, Any]:
    """The boundary that permits the access: to objects in the folder of the table, and to list them."""
    bucket, prefix = access.folder.bucket, f"{access.folder.path}/"
    objects = _literal(f"projects/_/buckets/{bucket}/objects/{prefix}")
    listed = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
    rule = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": [_WRITE if access.writes_everything else _READ],
        "availabilityCondition": {
            "expression": f"resource.name.startsWith({objects}) || {listed}.startsWith({_literal(prefix)})"
        },
    }
    return {"accessBoundary": {"accessBoundaryRules": [rule]}}


def _literal(text: str) -> str:
    """The text as a string of CEL. Quotes and backslashes are escaped, so no name ends the string."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class GcsTokens(Sessions[TemporaryCredentials]):
    """Issues tokens that are limited to a table. `source` has the credentials of the server."""

    lifetime_s: Final = 300.0
    """The metadata server of a Google machine returns tokens that are valid for five minutes to an hour."""

    def __init__(self, source: GoogleToken, *, endpoint: str = TOKEN_ENDPOINT, clock: Clock = utc_now) -> None:
        super().__init__(clock)
        self._source = source
        self._client: Any = Client(endpoint)  # type: ignore[no-untyped-call]

    def new(self, access: TableAccess) -> TemporaryCredentials:
        """A new token, in exchange for that of the server."""
        own, own_expiry = self._source.current(at_least=_RENEWED)
        try:
            answer = self._client.exchange_token(
                partial(Request(), timeout=_TIMEOUT_S),
                grant_type=_GRANT,
                subject_token=own,
                subject_token_type=_ACCESS_TOKEN,
                requested_token_type=_ACCESS_TOKEN,
                additional_options=access_boundary(access),
            )
            token, seconds = str(answer["access_token"]), answer.get("expires_in")
        except (GoogleAuthError, KeyError, TypeError, ValueError) as error:
            raise not_issued("Google's token exchange", error) from error
        expires_at: datetime = self._clock() + timedelta(seconds=int(seconds)) if seconds else own_expiry
        properties = {
            "gcs.oauth2.token": token,
            "gcs.oauth2.token-expires-at": str(int(expires_at.timestamp() * 1000)),
        }
        return TemporaryCredentials(properties, expires_at, "gcs.oauth2.refresh-credentials-endpoint")
