"""Secrets in encrypted files, one per secret, in one directory.

A file is encrypted with AES-256-GCM:

    the line skiway-secret-1 | id of the key, 8 bytes | nonce, 12 bytes | ciphertext with its tag

The name of the secret is authenticated with the content, so a file cannot be passed off as another secret. The directory also
contains the key file, unless it is configured elsewhere, and a lock file that serializes the writes of several processes.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from skiway.errors import Internal, InvalidArgument, LimitExceeded, PreconditionFailed, Unavailable
from skiway.foundation.causes import cause_of
from skiway.foundation.clock import Clock
from skiway.foundation.files import sync_paths
from skiway.security.redaction import Redacted
from skiway.security.secrets.store import check_size, no_such_secret, parameters_of, secret_key

MAGIC = b"skiway-secret-1\n"
KEY_BYTES = 32
KEY_ID_BYTES = 8
NONCE_BYTES = 12
HEAD_BYTES = len(MAGIC) + KEY_ID_BYTES
TAG_BYTES = 16

Randomness = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A key of 256 random bits. Its id identifies it without revealing anything about it."""

    secret: Redacted[bytes]
    id: bytes

    @classmethod
    def parsed(cls, text: str) -> EncryptionKey:
        """Parse a key in base64, in the standard or URL-safe alphabet."""
        try:
            secret = base64.b64decode(text.strip().translate(str.maketrans("-_", "+/")), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if len(secret) != KEY_BYTES:
            raise InvalidArgument(
                f"an encryption key for secrets must be {KEY_BYTES} random bytes in base64: generate one with "
                "`openssl rand -base64 32`",
                key="secret.key.invalid",
            )
        return cls(Redacted(secret), sha256(b"skiway-secret-key-id" + secret).digest()[:KEY_ID_BYTES])


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Encryption keys: the first one encrypts, all of them decrypt."""

    keys: Sequence[EncryptionKey]
    randomness: Randomness = field(default=os.urandom, repr=False)

    @classmethod
    def parsed(cls, text: str, *, randomness: Randomness = os.urandom) -> KeyRing:
        """Parse keys in base64, separated by commas or white space. Lines that start with # are comments."""
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        keys = [EncryptionKey.parsed(each) for each in re.split(r"[\s,]+", "\n".join(lines)) if each]
        if not keys:
            raise InvalidArgument(
                "there is no encryption key for secrets: provide one, for example from `openssl rand -base64 32`",
                key="secret.key.invalid",
            )
        return cls(keys, randomness)

    def seal(self, name: str, data: bytes) -> bytes:
        """Encrypt `data` as the secret with this name."""
        key, nonce = self.keys[0], self.randomness(NONCE_BYTES)
        head = MAGIC + key.id
        return head + nonce + AESGCM(key.secret.reveal()).encrypt(nonce, data, head + name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """Decrypt the secret with this name."""
        head, body = sealed[:HEAD_BYTES], sealed[HEAD_BYTES:]
        if not head.startswith(MAGIC) or len(body) < NONCE_BYTES + TAG_BYTES:
            raise _damaged(name)
        key = self._key(name, head[len(MAGIC) :])
        try:
            return AESGCM(key.secret.reveal()).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], head + name.encode())
        except InvalidTag:
            raise _damaged(name) from None

    def is_current(self, sealed: bytes) -> bool:
        """Whether this was encrypted with the first key."""
        return sealed.startswith(MAGIC + self.keys[0].id)

    def _key(self, name: str, key_id: bytes) -> EncryptionKey:
        for key in self.keys:
            if key.id == key_id:
                return key
        raise PreconditionFailed(
            f"secret {name} was encrypted with key {key_id.hex()}, but the known keys are "
            f"{', '.join(k.id.hex() for k in self.keys)}: add the missing key after the first one, or store the secret again",
            key="secret.key.unknown",
        )


def new_encryption_key(randomness: Randomness = os.urandom) -> Redacted[str]:
    """Generate a key in base64, as in a key file."""
    return Redacted(base64.b64encode(randomness(KEY_BYTES)).decode())


def _damaged(name: str) -> Internal:
    return Internal(
        f"secret {name} cannot be decrypted, its file is damaged or belongs to another secret: restore it from a backup, or "
        "store the secret again",
        key="secret.damaged",
    )


KEY_FILE = "encryption.key"
LOCK_FILE = "lock"
DRAFT_FILE = "draft"  # the file being written; there is one writer at a time
SECRETS = "accounts"  # the first part of every secret's name
MAX_NAME = 255
OTHERS = 0o027  # the permissions a key file must not have: write for the group, anything for others


class FileSecrets:
    """Encrypted files. Writes are atomic, and durable when they return."""

    def __init__(self, directory: Path, keys: KeyRing) -> None:
        self._directory = directory
        self._keys = keys
        with _explained(f"the secrets directory {directory}"):
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
                sync_paths([file.parent])

    def reencrypt(self) -> int:
        """Encrypt all secrets with the first key, so that other keys can be removed. Returns the number of changed secrets."""
        changed = 0
        with _explained(f"the secrets directory {self._directory}"):
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
                f"a part of the secret's name {key[:80]}… is too long for a file name: use at most {MAX_NAME} characters, or fewer if "
                "some must be encoded",
                key="secret.name.too_long",
            )
        return self._directory / key

    @contextmanager
    def _writing(self, key: str) -> Iterator[Path]:
        """The file of a secret, while no other thread or process writes."""
        file = self._file(key)
        with _explained(f"secret {key}"), _locked(self._directory / LOCK_FILE):
            yield file

    def _replace(self, file: Path, sealed: bytes) -> None:
        draft = self._directory / DRAFT_FILE
        _make_private(file.parent, below=self._directory)
        _write(draft, sealed)
        draft.replace(file)
        sync_paths([file.parent])


def key_ring_in(file: Path, *, secrets: Path, randomness: Randomness = os.urandom) -> KeyRing:
    """The keys in a key file, which is created if it does not exist, readable by its owner only.

    If `secrets` already contains secrets, a missing key file is an error, since a new key could not decrypt them.
    """
    with _explained(f"the secrets key file {file}"):
        if not file.exists():
            _make_key_file(file, secrets, randomness)
        mode = file.stat().st_mode & 0o777
        if mode & OTHERS:
            raise PreconditionFailed(
                f"the key file {file} has mode {mode:03o}, so other users can access it: `chmod 600` it",
                key="secret.key.exposed",
            )
        return KeyRing.parsed(file.read_text(), randomness=randomness)


def _make_key_file(file: Path, secrets: Path, randomness: Randomness) -> None:
    if any(secrets.glob(f"{SECRETS}/*/*/*")):
        raise PreconditionFailed(
            f"{secrets} contains secrets, but their key file {file} does not exist: restore it from a backup; without it they are "
            "lost and must be deleted and stored again",
            key="secret.key.lost",
        )
    _make_private(file.parent)
    draft = file.with_name(f"{file.name}.{randomness(8).hex()}")
    _write(draft, f"# encrypts secrets; keep a backup elsewhere\n{new_encryption_key(randomness).reveal()}\n".encode())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process was first; use its key
    finally:
        draft.unlink()
    sync_paths([file.parent])


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """A lock between processes and, since each use opens the file again, between threads."""
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _write(file: Path, data: bytes) -> None:
    """Write a file that only its owner can access; it is on disk when this returns."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _make_private(directory: Path, *, below: Path | None = None) -> None:
    """Create the directory and its parents, up to `below`, accessible by their owner only."""
    if directory.is_dir():
        return
    if directory.parent not in (below, directory):
        _make_private(directory.parent, below=below)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_paths([directory.parent])


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Translate file system errors in the block."""
    try:
        yield
    except OSError as error:
        cause, reason = cause_of(error), error.strerror or type(error).__name__
        why = f"{reason}: check the disk and the permissions" if cause is None else cause.sentence
        raise Unavailable(f"{what} cannot be used: {why}", key="secret.unavailable") from error
    except UnicodeDecodeError:
        raise PreconditionFailed(f"{what} is not text: restore it from a backup", key="secret.key.invalid") from None


def open_directory(url: str, *, options: Mapping[str, str], clock: Clock) -> FileSecrets:  # noqa: ARG001
    """Encrypted files, for `file:///directory?key_file=...`. The option `keys` gives the keys themselves."""
    parsed = urlsplit(url)
    given = parameters_of(parsed.query, options, known={"key_file", "keys"})
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise InvalidArgument(
            f"{parsed.scheme}://{parsed.netloc}{parsed.path} is not a directory of this machine: use file:///path"
        )
    directory = Path(unquote(parsed.path))
    if keys := given.get("keys"):
        return FileSecrets(directory, KeyRing.parsed(keys))
    key_file = Path(given.get("key_file") or directory / KEY_FILE)
    return FileSecrets(directory, key_ring_in(key_file, secrets=directory))
