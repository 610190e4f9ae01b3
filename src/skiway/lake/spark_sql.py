"""What the lake needs to run queries on Spark, if the operator allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from skiway.security import Principal
from skiway.security.query_tokens import QueryTokens
from skiway.spark_queries.engine import SparkEngine

__all__ = ["SparkSql"]


@dataclass(frozen=True, slots=True)
class SparkSql:
    """The engine, the tokens with which its processes read tables, and where they reach this server."""

    engine: SparkEngine
    tokens: QueryTokens = field(repr=False)
    location: Callable[[], str]
    lifetime_s: float = 600.0
    root_certificates: str = ""

    def token_of(self, principal: Principal) -> str:
        """A token with which a query reads what this caller may read, for as long as it may take."""
        return self.tokens.issue(principal, self.lifetime_s)
