"""Signed text: content that a server gives to a client and later accepts only if it is unchanged.

Everybody can read the content; the signature needs a key that the servers share. Each purpose has its own key, so a text
that was signed for one purpose is not accepted for another.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

__all__ = ["SignedText"]


class SignedText:
    """Signs and reads texts for one purpose."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = hmac.new(key, purpose.encode(), sha256).digest()

    def seal(self, content: bytes) -> str:
        """The content with its signature, in characters that are safe in URLs and headers."""
        return f"{_text(content)}.{_text(self._mac(content))}"

    def open(self, sealed: str) -> bytes | None:
        """The content of a text; None if it was not signed with this key for this purpose."""
        content, _, mac = sealed.partition(".")
        try:
            found, given = _bytes(content), _bytes(mac)
        except (ValueError, binascii.Error):
            return None
        return found if hmac.compare_digest(self._mac(found), given) else None

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, sha256).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
