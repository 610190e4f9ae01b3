"""A wrapper for secrets in memory, which masks them wherever they are printed."""

from __future__ import annotations

from hmac import compare_digest
from typing import Any, Generic, NoReturn, Self, TypeVar

from skiway.config.fields import MASK

__all__ = ["MASK", "Redacted"]

S = TypeVar("S", str, bytes)


class Redacted(Generic[S]):
    """A secret in memory. Printing, formatting or logging it shows `****`; only `reveal()` returns it.

    >>> password = Redacted("correct horse")
    >>> print(password, repr(password), f"{password:>6}")
    **** Redacted(****)   ****
    >>> password.reveal()
    'correct horse'
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: S) -> None:
        self._secret: S = secret

    def reveal(self) -> S:
        """The secret itself. Do not store it, and never put it into a message."""
        return self._secret

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Redacted):
            return NotImplemented
        return compare_digest(_bytes(self._secret), _bytes(other._secret))

    __hash__ = None  # type: ignore[assignment]  # a hash would leak information about the secret

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same object, so that objects that contain it can be copied."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled: call reveal() where it must be sent")

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Redacted({MASK})"


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret
