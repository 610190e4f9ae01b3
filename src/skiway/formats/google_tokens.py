"""Access tokens of Google Cloud for the server itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache, partial
from threading import Lock
from typing import Any, Final

from skiway import extras
from skiway.errors import Unavailable

__all__ = ["GoogleToken", "google_token"]

_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
_FRESH: Final = timedelta(minutes=10)
_TIMEOUT_S: Final = 10


class GoogleToken:
    """Access tokens from Google credentials: those in a file, or the default credentials of this machine."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._lock = Lock()

    def current(self, *, at_least: timedelta = _FRESH) -> tuple[str, datetime]:
        """A token and the time when it expires. If it is not valid for `at_least`, it is renewed first."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        with self._lock:
            if not self._is_valid_for(at_least):
                try:
                    self._credentials.refresh(partial(Request(), timeout=_TIMEOUT_S))
                except GoogleAuthError as error:
                    raise Unavailable(
                        "Google Cloud issues no access token to the server: ask the operator to check storage.gcs",
                        key="warehouse.credentials",
                        detail=str(error),
                    ) from error
            return self._credentials.token, self._expires_at()

    def for_obstore(self) -> Any:
        """The token as obstore expects it."""
        token, expires_at = self.current()
        return {"token": token, "expires_at": expires_at}

    def _is_valid_for(self, duration: timedelta) -> bool:
        return bool(self._credentials.token) and self._expires_at() - datetime.now(UTC) >= duration

    def _expires_at(self) -> datetime:
        expires_at: datetime | None = self._credentials.expiry  # without a time zone
        return expires_at.replace(tzinfo=UTC) if expires_at else datetime.now(UTC) + timedelta(hours=1)


@cache
def google_token(file: str) -> GoogleToken:
    """The credentials in a key file of a service account; without one, the default credentials of this machine."""
    with extras.needed("gcs", "a warehouse in Google Cloud Storage"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import service_account
    try:
        if not file:
            return GoogleToken(google.auth.default(scopes=_SCOPES)[0])
        credentials: Any = service_account.Credentials
        return GoogleToken(credentials.from_service_account_file(file, scopes=_SCOPES))
    except (GoogleAuthError, OSError, ValueError) as error:
        raise Unavailable(
            "the server has no valid Google credentials: ask the operator to check storage.gcs.service_account_file, or "
            "the default credentials of its machine",
            key="warehouse.credentials",
            detail=f"{file or 'default credentials'}: {error}",
        ) from error
