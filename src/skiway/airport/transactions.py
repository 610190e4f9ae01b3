"""Transactions.

DuckDB asks for a transaction id before its first statement and sends it along; it never tells whether the user
committed or rolled back. So the server commits each writing statement when it succeeded and rolls it back when it
failed, and other clients may use the actions `commit_transaction` and `rollback_transaction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

__all__ = ["TransactionManager", "TransactionStatus", "Transactional"]


class TransactionStatus(StrEnum):
    """Where a transaction is."""

    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"


class TransactionManager(ABC):
    """Begins and ends transactions; ids are opaque text. Work finds its id in `current_request().transaction_id`."""

    @abstractmethod
    def begin(self) -> str:
        """A new transaction's id."""

    @abstractmethod
    def commit(self, transaction_id: str) -> None:
        """Make its work durable; `NotFound` for an unknown id, `PreconditionFailed` for one that was aborted."""

    @abstractmethod
    def rollback(self, transaction_id: str) -> None:
        """Undo its work."""

    @abstractmethod
    def status(self, transaction_id: str) -> TransactionStatus | None:
        """Where it is; None for an unknown id, also one that expired long ago."""


class Transactional(ABC):
    """A catalog with transactions of its own."""

    @property
    @abstractmethod
    def transactions(self) -> TransactionManager:
        """Its manager."""
