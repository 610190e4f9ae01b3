"""How long a query lives, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueryRules"]


@dataclass(frozen=True, slots=True)
class QueryRules:
    """The rules of leases. Who asks for no time gets the default; who asks for more than the most gets the most."""

    default_ttl_s: float = 60.0
    max_ttl_s: float = 24 * 3600.0
    grace_s: float = 15.0
    max_leases: int = 10_000

    def ttl_s(self, asked_s: int) -> float:
        """How long a lease is given that was asked for this long."""
        return min(float(asked_s), self.max_ttl_s) if asked_s > 0 else self.default_ttl_s
