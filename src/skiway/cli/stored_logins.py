"""The logins of this user, one file for each server. `skiway login` writes them, and all commands use them.

The files are in `skiway/logins` in the user's configuration folder. Only their owner may open them: a file that others can read
is rejected, as its token may be known to them.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from skiway.errors import InvalidArgument, SkiwayError, Unauthorized

if TYPE_CHECKING:
    from skiway.security.identity_provider import DeviceLogin, IssuedTokens


MARGIN: Final = timedelta(seconds=30)
"""A token that expires sooner is renewed before a command uses it."""
OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
WHAT: Final = "the login"


class StoredLogin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token for a server, and how to renew it. `uses_id_token` says which of the issuer's tokens the server accepts."""

    server: str
    token: str
    expires_at: datetime | None = None
    issuer: str = ""
    client_id: str = ""
    scopes: str = ""
    refresh_token: str = ""
    uses_id_token: bool = False

    def __repr__(self) -> str:
        return f"StoredLogin({self.server!r})"

    def is_valid(self, now: datetime) -> bool:
        """Whether the token is valid for some more time, as far as this is known."""
        return self.expires_at is None or now + MARGIN < self.expires_at

    def renewed(self, tokens: IssuedTokens, now: datetime) -> StoredLogin:
        """The login with new tokens."""
        token = (
            (tokens.id_token if self.uses_id_token else tokens.access_token) or tokens.access_token or tokens.id_token
        )
        expires_at = None if tokens.lifetime_s is None else now + timedelta(seconds=tokens.lifetime_s)
        return msgspec.structs.replace(self, token=token, expires_at=expires_at, refresh_token=tokens.refresh_token)

    def provider(self) -> DeviceLogin:
        """The issuer of the token."""
        from skiway.security.identity_provider import DeviceLogin  # which imports httpx, and few commands renew a token

        return DeviceLogin(self.issuer, self.client_id, scopes=self.scopes)


def find_login(server: str) -> StoredLogin | None:
    """The login at a server, as it is stored; None if there is none. `server` is a location of Airport."""
    path = _path(server)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"{WHAT} {path} cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        if os.fstat(file.fileno()).st_mode & OPEN_TO_OTHERS:
            raise InvalidArgument(
                f"other users of this machine can open {path}, which contains your token: remove it with skiway logout, "
                "and log in again"
            )
        try:
            found = msgspec.json.decode(file.read(), type=StoredLogin)
        except msgspec.DecodeError:
            raise InvalidArgument(f"{WHAT} {path} is damaged: run skiway login again") from None
    return found if found.server == server else None


def valid_login(server: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> StoredLogin | None:
    """The login at a server with a valid token, which is renewed if necessary; None if there is no login."""
    found = find_login(server)
    if found is None or found.is_valid(now()):
        return found
    with _changing(_path(server)):  # a refresh token may be valid only once: one command renews, the others wait
        found = find_login(server)
        if found is None or found.is_valid(now()):
            return found
        if not found.refresh_token:
            raise Unauthorized(f"your login at {server} has expired: run skiway login again", key="login.expired")
        renewed = found.renewed(found.provider().refresh(found.refresh_token), now())
        _write(renewed)
        return renewed


class LoginToken:
    """The token of the login at a server, for clients that call it before each call: long commands outlive a token."""

    def __init__(self, server: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._server, self._now = server, now
        self._lock = threading.Lock()
        self._is_known = False
        self.login: StoredLogin | None = None

    def __call__(self) -> str | None:
        with self._lock:
            is_valid = self.login is None or self.login.is_valid(self._now())
            if not self._is_known or not is_valid:
                self.login = valid_login(self._server, now=self._now)
                self._is_known = True
            return None if self.login is None else self.login.token


def store_login(login: StoredLogin) -> Path:
    """Store a login in the place of an earlier one at the same server."""
    path = _path(login.server)
    with _changing(path):
        _write(login)
    return path


def forget_login(server: str) -> tuple[bool, StoredLogin | None]:
    """Delete a login. Returns whether there was one, and the login itself if it could be read."""
    path = _path(server)
    if not path.is_symlink() and not path.exists():
        return False, None
    with _changing(path):
        try:
            found = find_login(server)
        except SkiwayError:
            found = None
        path.unlink(missing_ok=True)
    return True, found


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    # Imported here, as in `_write`, because every command reads logins and few change them.
    from skiway.foundation.files import changing

    with changing(path, WHAT):
        yield


def _write(login: StoredLogin) -> None:
    from skiway.foundation.files import replace_file

    replace_file(_path(login.server), msgspec.json.encode(login))


def _path(server: str) -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    name = hashlib.sha256(server.encode()).hexdigest()[:32]
    return Path(folder).expanduser() / "skiway" / "logins" / f"{name}.json"
