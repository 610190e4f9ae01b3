"""Secrets as they lie on a disk: encrypted with AES-256-GCM, bound to their name.

    the line skiway-secret-1 | id of the key, 8 bytes | nonce, 12 bytes | ciphertext with its tag

The name of the secret is authenticated with it, so a file cannot be passed off as another's.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from skiway.errors import Internal, InvalidArgument, PreconditionFailed
from skiway.security.redaction import Redacted

__all__ = ["KeyRing", "new_encryption_key"]

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
