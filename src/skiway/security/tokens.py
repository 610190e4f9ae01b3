"""Mode `token`: static tokens, stored as hashes in a file that is reloaded when it changes; and changes of this file.

SHA-256 without salt or key stretching is sufficient here, because a token has 256 random bits and cannot be guessed however
fast the hash is. Short tokens, which people may have chosen, are rejected.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from threading import Lock
from typing import Annotated, Final

import msgspec

from skiway.errors import InvalidArgument, NotFound, Unauthorized
from skiway.foundation.clock import Clock, utc_now
from skiway.foundation.files import changing, replace_file
from skiway.security.authentication import Accounts, Admission, Principal, Roles, TokenHeaders, normal_roles
from skiway.security.redaction import Redacted
from skiway.security.signed_tokens import ACCESS_PREFIX, AccessToken, AccessTokens

MIN_TOKEN_CHARACTERS = 32
TOKEN_PREFIX = "skiway_"  # noqa: S105  (lets secret scanners recognize our tokens)
TOKEN_BYTES = 32

log = logging.getLogger(__name__)

Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]+\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Version = tuple[int, int, int]


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored record of a token: its owner, account id, roles, and its SHA-256 in hex.

    The account is empty only for the platform administrator.
    """

    name: Name
    sha256: Digest
    account: Text = ""
    roles: tuple[Text, ...] = ()
    expires_at: Moment | None = None

    @classmethod
    def of(
        cls, token: str, *, name: str, account: str = "", roles: Iterable[str] = (), expires_at: datetime | None = None
    ) -> TokenEntry:
        """The entry for an existing token, which must be long and random."""
        if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidArgument(
                f"the token for {name} has {len(token)} characters, or some that are not allowed in headers: use at least "
                f"{MIN_TOKEN_CHARACTERS} random letters and digits, or generate one with `skiway tokens create`",
                key="token.weak",
            )
        entry = cls(name=name, sha256=_digest(token), account=account, roles=tuple(roles), expires_at=expires_at)
        return _validated(entry)

    def toml(self) -> str:
        """The entry as TOML, to be appended to a tokens file."""
        quoted = {"name": self.name, "account": self.account, "roles": list(self.roles), "sha256": self.sha256}
        lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in quoted.items()]
        if self.expires_at:
            lines.append(f"expires_at = {self.expires_at.isoformat()}")
        return "\n".join(["[[tokens]]", *lines, ""])


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token: its text, to be shown once, and the entry to store."""

    text: Redacted[str]
    entry: TokenEntry


def new_token(
    name: str,
    account: str,
    *,
    roles: Iterable[str] = (),
    expires_at: datetime | None = None,
    randomness: Callable[[int], str] = secrets.token_urlsafe,
) -> NewToken:
    """Generate a token for `name`, with 256 bits of `randomness`."""
    token = TOKEN_PREFIX + randomness(TOKEN_BYTES)
    entry = TokenEntry.of(token, name=name, account=account, roles=roles, expires_at=expires_at)
    return NewToken(Redacted(token), entry)


def roles_of_user(
    entries: Iterable[TokenEntry], account: str, name: str, *, clock: Clock = utc_now
) -> frozenset[str] | None:
    """The roles of all valid tokens of a user in an account; None if there is no such token."""
    now = clock()
    valid = [entry for entry in entries if entry.expires_at is None or now < entry.expires_at]
    found = [normal_roles(each.roles) for each in valid if (each.account, each.name) == (account, name)]
    return frozenset[str]().union(*found) if found else None


class TokenAuthenticator:
    """Authenticates callers by static tokens.

    `entries` is called for each request, so a revoked token is rejected immediately. `on_use` is called with the entry of each
    valid token that is used.
    """

    def __init__(
        self,
        entries: Callable[[], Sequence[TokenEntry]],
        *,
        accounts: Accounts | None,
        roles: Roles | None = None,
        headers: TokenHeaders | None = None,
        on_use: Callable[[TokenEntry], None] = lambda _: None,
        access_tokens: AccessTokens | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._entries = entries
        self._access_tokens = access_tokens
        self._on_use = on_use
        self._admission = Admission(roles or Roles(), accounts)
        self._headers = headers or TokenHeaders()
        self._clock = clock

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The owner of the token in the headers."""
        entry, access = self._found(self._headers.token(headers))
        ends = [each for each in (entry.expires_at, access.expires_at if access else None) if each is not None]
        expires_at = min(ends) if ends else None
        bearer = Principal(entry.name, entry.account, frozenset(entry.roles), frozenset(), expires_at=expires_at)
        principal = self._admission.admit(bearer)
        self._on_use(entry)
        return principal

    def issue(self, token: str) -> tuple[str, float]:
        """An access token for the owner of `token`, and for how many seconds it is valid. Raises `Unauthorized`.

        `token` is a static token, or an access token of a session that is not over.
        """
        entry, access = self._found(token)
        assert self._access_tokens is not None, "access tokens are not configured"
        since = None if access is None else datetime.fromtimestamp(access.since, UTC)
        return self._access_tokens.issue(entry.sha256, since=since, until=entry.expires_at)

    def renews(self, expired: str, token: str) -> bool:
        """Whether `expired` is an access token, also one that has expired, of the static token `token`."""
        assert self._access_tokens is not None, "access tokens are not configured"
        return compare_digest(self._access_tokens.read(expired, expired=True).sha256, _digest(token))

    def _found(self, token: str) -> tuple[TokenEntry, AccessToken | None]:
        """The entry of a token that is valid now; for an access token also its content."""
        access = None
        if self._access_tokens is not None and token.startswith(ACCESS_PREFIX):
            access = self._access_tokens.read(token)
        entry = self._entry(_digest(token) if access is None else access.sha256)
        if entry.expires_at and self._clock() >= entry.expires_at:
            raise Unauthorized(
                f"the token of {entry.name} was valid until {entry.expires_at.isoformat()}: ask for a new one",
                key="token.expired",
            )
        return entry, access

    def _entry(self, digest: str) -> TokenEntry:
        found = None
        # Compare with all entries, each in constant time, so that the response time reveals nothing about them.
        for entry in self._entries():
            if compare_digest(entry.sha256, digest):
                found = entry
        if found is None:
            raise Unauthorized(
                "the token is unknown: check that it is complete; if it was revoked, ask for a new one",
                key="token.unknown",
            )
        return found


def _validated(entry: TokenEntry) -> TokenEntry:
    """The entry after checking its fields, which msgspec does only when it decodes."""
    try:
        return msgspec.convert(msgspec.to_builtins(entry), TokenEntry)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the token for {entry.name!r} cannot be stored: {error}", key="token.entry") from None


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a tokens file."""

    tokens: tuple[TokenEntry, ...] = ()


class TokenFile:
    """The entries of a TOML or JSON file, which must be valid when the server starts.

    If a later version is invalid or missing, this is logged once and the entries remain, so that a typo locks nobody out.
    To revoke all tokens, leave an empty file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._version = _version(path)
        self._entries = _read(path)

    def entries(self) -> Sequence[TokenEntry]:
        """The current entries; pass this method to `TokenAuthenticator`."""
        with self._lock:
            # Taken before reading, so that a change in between is noticed by the next call.
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._reload()
            return self._entries

    def _reload(self) -> None:
        try:
            self._entries = _read(self._path)
        except InvalidArgument as error:
            log.error("the tokens remain unchanged: %s", error)
        else:
            log.info("read %d tokens from %s", len(self._entries), self._path)


def _version(path: Path) -> Version | None:
    """A value that changes with the content; None if the file does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(path: Path) -> tuple[TokenEntry, ...]:
    """The entries of the file. Errors give the location but not the text, which may contain a token by mistake."""
    try:
        data = path.read_bytes()
        decode = msgspec.json.decode if path.suffix.lower() == ".json" else msgspec.toml.decode
        found = decode(data, type=Tokens) if data.strip() else Tokens()
    except OSError as error:
        raise InvalidArgument(f"the tokens file {path} cannot be read: {error.strerror}", key="tokens.file") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"the tokens file {path} is not UTF-8 text", key="tokens.file") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the tokens file {path} is invalid: {error}", key="tokens.file") from None
    if len({entry.sha256 for entry in found.tokens}) < len(found.tokens):
        raise InvalidArgument(
            f"the tokens file {path} has two entries for one token: remove one of them", key="tokens.file"
        )
    return found.tokens


ID_DIGITS: Final = 8
MIN_ID_DIGITS: Final = 4
ENTRY: Final = re.compile(r"^(?=\[\[tokens\]\])", re.MULTILINE)


def token_id(entry: TokenEntry) -> str:
    """The first digits of the token's hash, which tell tokens of one name apart."""
    return entry.sha256[:ID_DIGITS]


def add_token(path: Path, entry: TokenEntry) -> None:
    """Append an entry to a TOML file, which is created if it does not exist."""
    if path.suffix.lower() == ".json":
        raise InvalidArgument(f"cannot add tokens to the JSON file {path}: use a TOML file")
    with changing(path, "the tokens file"), _appending(path) as file:
        TokenFile(path)  # raises if the existing content is invalid
        file.write(f"\n{entry.toml()}".encode())  # one write, so that readers never see half an entry


def remove_token(path: Path, name_or_id: str, *, every: bool = False) -> Sequence[TokenEntry]:
    """Remove the token with this name or id, and return it. If several have the name, `every` removes them all."""
    with changing(path, "the tokens file"):
        entries = TokenFile(path).entries()
        chosen = _chosen(entries, name_or_id, path)
        if len(chosen) > 1 and not every:
            ids = ", ".join(map(token_id, chosen))
            raise InvalidArgument(
                f"{len(chosen)} tokens are called {name_or_id}: name one of {ids}, or revoke them all with --all",
                key="token.ambiguous",
            )
        replace_file(path, _without(path, entries, chosen))
        return chosen


def _chosen(entries: Sequence[TokenEntry], name_or_id: str, path: Path) -> Sequence[TokenEntry]:
    by_name = [entry for entry in entries if entry.name == name_or_id]
    long_enough = len(name_or_id) >= MIN_ID_DIGITS
    found = by_name or [entry for entry in entries if long_enough and entry.sha256.startswith(name_or_id.lower())]
    if not found:
        raise NotFound(
            f"the tokens file {path} has no token {name_or_id!r}: `skiway tokens list` shows names and ids", key="token"
        )
    return found


def _without(path: Path, entries: Sequence[TokenEntry], chosen: Sequence[TokenEntry]) -> bytes:
    """The content of the file without the chosen entries. Comments stay where the file has its usual form."""
    kept = tuple(entry for entry in entries if entry not in chosen)
    if path.suffix.lower() == ".json":
        return msgspec.json.format(msgspec.json.encode({"tokens": kept}))
    parts = ENTRY.split(path.read_text())
    hashes = [entry.sha256 for entry in chosen]
    edited = "".join(part for part in parts if not (part.startswith("[[") and any(each in part for each in hashes)))
    return edited.encode() if _is(edited, kept) else "\n".join(entry.toml() for entry in kept).encode()


def _is(text: str, entries: Sequence[TokenEntry]) -> bool:
    try:
        found = msgspec.toml.decode(text).get("tokens", [])
        return msgspec.convert(found, tuple[TokenEntry, ...]) == tuple(entries)
    except msgspec.DecodeError:
        return False


def _appending(path: Path) -> io.FileIO:
    return io.FileIO(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+")
