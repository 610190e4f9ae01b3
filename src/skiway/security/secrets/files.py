"""Secrets as they lie on a disk: encrypted with AES-256-GCM, bound to their name.

    the line skiway-secret-1 | id of the key, 8 bytes | nonce, 12 bytes | ciphertext with its tag

The name of the secret is authenticated with it, so a file cannot be passed off as another's.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from skiway.errors import Internal, InvalidArgument, LimitExceeded, PreconditionFailed, Unavailable
from skiway.security.redaction import Redacted
from skiway.security.secrets.store import check_size, no_such_secret, secret_key

__all__ = ["KEY_FILE", "FileSecrets", "KeyRing", "key_ring_in", "new_encryption_key"]

MAGIC = b"skiway-secret-1\n"
KEY_BYTES = 32
KEY_ID_BYTES = 8
NONCE_BYTES = 12
HEAD_BYTES = len(MAGIC) + KEY_ID_BYTES
TAG_BYTES = 16

Randomness = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """256 random bits; its id tells it from others, and nothing about it."""

    secret: Redacted[bytes]
    id: bytes

    @classmethod
    def parsed(cls, text: str) -> EncryptionKey:
        """The key written in base64, of either alphabet."""
        try:
            secret = base64.b64decode(text.strip().translate(str.maketrans("-_", "+/")), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if len(secret) != KEY_BYTES:
            raise InvalidArgument(
                f"an encryption key for secrets is {KEY_BYTES} random bytes in base64, and what was given is not: make "
                "one with `openssl rand -base64 32`",
                key="secret.key.invalid",
            )
        return cls(Redacted(secret), sha256(b"skiway-secret-key-id" + secret).digest()[:KEY_ID_BYTES])


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys to encrypt and decrypt with: the first encrypts, all of them decrypt."""

    keys: Sequence[EncryptionKey]
    randomness: Randomness = field(default=os.urandom, repr=False)

    @classmethod
    def parsed(cls, text: str, *, randomness: Randomness = os.urandom) -> KeyRing:
        """The keys in a text, in base64, apart by commas or white space; lines that begin with # are remarks."""
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        keys = [EncryptionKey.parsed(each) for each in re.split(r"[\s,]+", "\n".join(lines)) if each]
        if not keys:
            raise InvalidArgument(
                "there is no encryption key for secrets: give at least one, such as `openssl rand -base64 32` makes",
                key="secret.key.invalid",
            )
        return cls(keys, randomness)

    def seal(self, name: str, data: bytes) -> bytes:
        """`data` encrypted as the secret of this name."""
        key, nonce = self.keys[0], self.randomness(NONCE_BYTES)
        head = MAGIC + key.id
        return head + nonce + AESGCM(key.secret.reveal()).encrypt(nonce, data, head + name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """What was sealed as the secret of this name."""
        head, body = sealed[:HEAD_BYTES], sealed[HEAD_BYTES:]
        if not head.startswith(MAGIC) or len(body) < NONCE_BYTES + TAG_BYTES:
            raise _damaged(name)
        key = self._key(name, head[len(MAGIC) :])
        try:
            return AESGCM(key.secret.reveal()).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], head + name.encode())
        except InvalidTag:
            raise _damaged(name) from None

    def is_current(self, sealed: bytes) -> bool:
        """Was this sealed with the key that encrypts now?"""
        return sealed.startswith(MAGIC + self.keys[0].id)

    def _key(self, name: str, key_id: bytes) -> EncryptionKey:
        for key in self.keys:
            if key.id == key_id:
                return key
        raise PreconditionFailed(
            f"secret {name} was encrypted with key {key_id.hex()}, and here are {', '.join(k.id.hex() for k in self.keys)}: "
            "add the key it was encrypted with behind the first one, or store the secret anew",
            key="secret.key.unknown",
        )


def new_encryption_key(randomness: Randomness = os.urandom) -> Redacted[str]:
    """A key in base64, as a key file holds it."""
    return Redacted(base64.b64encode(randomness(KEY_BYTES)).decode())


def _damaged(name: str) -> Internal:
    return Internal(
        f"secret {name} cannot be decrypted, its file is damaged or is that of another secret: restore it from a backup, or "
        "store the secret anew",
        key="secret.damaged",
    )


# --------------------
# Secrets in encrypted files, one for each, below one directory.
#
# The directory also holds the key file, unless another place is named for it, and a lock by which processes that share
# the directory write one after the other.


KEY_FILE = "encryption.key"
LOCK_FILE = "lock"
DRAFT_FILE = "draft"  # what is being written; there is one writer at a time
SECRETS = "accounts"  # all names of secrets begin so
MAX_NAME = 255
OTHERS = 0o027  # what a key file's mode must not allow: the group to write, others anything


class FileSecrets:
    """Encrypted files. A secret is replaced at once or not at all, and survives a power failure once it is stored."""

    def __init__(self, directory: Path, keys: KeyRing) -> None:
        self._directory = directory
        self._keys = keys
        with _explained(f"the directory {directory} for secrets"):
            _make_private(directory)

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        key = secret_key(account_id, kind, resource_id)
        check_size(key, data)
        with self._writing(key) as file:
            self._replace(file, self._keys.seal(key, data))

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """See `SecretsStore`."""
        key = secret_key(account_id, kind, resource_id)
        file = self._file(key)
        with _explained(f"secret {key}"):
            try:
                sealed = file.read_bytes()
            except FileNotFoundError:
                raise no_such_secret(key) from None
        return self._keys.open(key, sealed)

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        key = secret_key(account_id, kind, resource_id)
        check_size(key, data)
        with self._writing(key) as file:
            if not file.exists():
                raise no_such_secret(key)
            self._replace(file, self._keys.seal(key, data))

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """See `SecretsStore`."""
        with self._writing(secret_key(account_id, kind, resource_id)) as file:
            if file.exists():
                file.unlink()
                _sync(file.parent)

    def reencrypt(self) -> int:
        """Encrypt with the first key what still is with another, so that the others can be dropped; how many it were."""
        changed = 0
        with _explained(f"the directory {self._directory} for secrets"):
            files = sorted(self._directory.glob(f"{SECRETS}/*/*/*"))
        for file in files:
            key = file.relative_to(self._directory).as_posix()
            with self._writing(key):
                sealed = file.read_bytes() if file.exists() else None
                if sealed is not None and not self._keys.is_current(sealed):
                    self._replace(file, self._keys.seal(key, self._keys.open(key, sealed)))
                    changed += 1
        return changed

    def __repr__(self) -> str:
        return f"FileSecrets({str(self._directory)!r})"

    def _file(self, key: str) -> Path:
        if any(len(part) > MAX_NAME for part in key.split("/")):
            raise LimitExceeded(
                f"a part of the secret's name {key[:80]}… is longer than a file's name may be: use at most {MAX_NAME} "
                "characters, fewer where some must be encoded",
                key="secret.name.too_long",
            )
        return self._directory / key

    @contextmanager
    def _writing(self, key: str) -> Iterator[Path]:
        """The file of a secret, while no other thread or process writes any."""
        file = self._file(key)
        with _explained(f"secret {key}"), _locked(self._directory / LOCK_FILE):
            yield file

    def _replace(self, file: Path, sealed: bytes) -> None:
        draft = self._directory / DRAFT_FILE
        _make_private(file.parent, below=self._directory)
        _write(draft, sealed)
        draft.replace(file)
        _sync(file.parent)


def key_ring_in(file: Path, *, secrets: Path, randomness: Randomness = os.urandom) -> KeyRing:
    """The keys in a key file, which is made where there is none yet; readable by its owner only.

    Where `secrets` already holds some, a missing key file is lost, not new: another key would read none of them.
    """
    with _explained(f"the key file {file} for secrets"):
        if not file.exists():
            _make_key_file(file, secrets, randomness)
        mode = file.stat().st_mode & 0o777
        if mode & OTHERS:
            raise PreconditionFailed(
                f"the key file {file} has mode {mode:03o}, so that others on this machine can use it: `chmod 600` it",
                key="secret.key.exposed",
            )
        return KeyRing.parsed(file.read_text(), randomness=randomness)


def _make_key_file(file: Path, secrets: Path, randomness: Randomness) -> None:
    if any(secrets.glob(f"{SECRETS}/*/*/*")):
        raise PreconditionFailed(
            f"{secrets} holds secrets, and their key file {file} is not there: restore it from a backup; without it they "
            "are lost, and must be removed and stored anew",
            key="secret.key.lost",
        )
    _make_private(file.parent)
    draft = file.with_name(f"{file.name}.{randomness(8).hex()}")
    _write(draft, f"# encrypts secrets; keep a copy elsewhere\n{new_encryption_key(randomness).reveal()}\n".encode())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process was first: its key is the one
    finally:
        draft.unlink()
    _sync(file.parent)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """A lock between processes, and as each use opens the file anew, between threads too."""
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _write(file: Path, data: bytes) -> None:
    """A file of its owner only, on the disk when this returns."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _make_private(directory: Path, *, below: Path | None = None) -> None:
    """The directory and those above it, but not above `below`; new ones are their owner's only."""
    if directory.is_dir():
        return
    if directory.parent not in (below, directory):
        _make_private(directory.parent, below=below)
    directory.mkdir(mode=0o700, exist_ok=True)
    _sync(directory.parent)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """A block whose errors of the file system become ours."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"{what} cannot be used: {error.strerror or type(error).__name__}: see the disk and the permissions",
            key="secret.unavailable",
        ) from error
    except UnicodeDecodeError:
        raise PreconditionFailed(f"{what} is no text: restore it from a backup", key="secret.key.invalid") from None
