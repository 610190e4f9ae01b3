"""Tokens in a file that is read again when it changes, so that a token is revoked without a restart."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import msgspec

from skiway.errors import InvalidArgument
from skiway.security.tokens import TokenEntry

__all__ = ["TokenFile"]

log = logging.getLogger(__name__)

Version = tuple[int, int, int]


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as a whole."""

    tokens: tuple[TokenEntry, ...] = ()


class TokenFile:
    """The entries of a TOML or JSON file, which must be right when the server starts.

    A later version that is broken or gone is logged once, and the entries stay what they were: a slip of an editor
    locks nobody out. To revoke all tokens, leave an empty file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._version = _version(path)
        self._entries = _read(path)

    def entries(self) -> Sequence[TokenEntry]:
        """The entries now; fit to be what `TokenAuthenticator` asks."""
        with self._lock:
            # Before reading: a change in between then shows as a newer version next time.
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._reload()
            return self._entries

    def _reload(self) -> None:
        try:
            self._entries = _read(self._path)
        except InvalidArgument as error:
            log.error("the tokens stay as they were: %s", error.message)
        else:
            log.info("read %d tokens from %s", len(self._entries), self._path)


def _version(path: Path) -> Version | None:
    """What changes with the content; None for a file that is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(path: Path) -> tuple[TokenEntry, ...]:
    """The file's entries. Errors tell the place and never the text, which may hold a token by mistake."""
    try:
        data = path.read_bytes()
        decode = msgspec.json.decode if path.suffix.lower() == ".json" else msgspec.toml.decode
        found = decode(data, type=Tokens) if data.strip() else Tokens()
    except OSError as error:
        raise InvalidArgument(f"the tokens file {path} cannot be read: {error.strerror}", key="tokens.file") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"the tokens file {path} is not text in UTF-8", key="tokens.file") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the tokens file {path} is not right: {error}", key="tokens.file") from None
    if len({entry.sha256 for entry in found.tokens}) < len(found.tokens):
        raise InvalidArgument(
            f"the tokens file {path} has two entries for one token: remove one of them", key="tokens.file"
        )
    return found.tokens
