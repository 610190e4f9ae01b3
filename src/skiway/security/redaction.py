"""Secrets that do not show themselves."""

from __future__ import annotations

from hmac import compare_digest
from typing import Any, Generic, NoReturn, Self, TypeVar

__all__ = ["MASK", "Redacted"]

MASK = "****"

S = TypeVar("S", str, bytes)


class Redacted(Generic[S]):
    """A secret in memory. Whatever prints, formats or logs it shows `****`; only `reveal()` gives it away.

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
        """The secret itself. Do not keep it, and put it into no message."""
        return self._secret

    def __eq__(self, other: object) -> bool:
        """The same secret; how long it takes to know tells nothing about it."""
        if not isinstance(other, Redacted):
            return NotImplemented
        return compare_digest(_bytes(self._secret), _bytes(other._secret))

    __hash__ = None  # type: ignore[assignment]  # a hash would be a trace of the secret

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself, so that what holds it can be copied."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: reveal() it where it must be sent")

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Redacted({MASK})"


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret
