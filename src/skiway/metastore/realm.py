"""The metastore as one account sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.metastore.kinds import Kind
from skiway.metastore.repository import Repository
from skiway.storage import Clock, Stores, utc_now

__all__ = ["PLATFORM", "Realm", "random_id", "timestamp"]

M = TypeVar("M", bound=Message)

PLATFORM = ""
"""The account of those who look after all accounts, and own nothing themselves."""


def random_id() -> str:
    """A new id, like no other."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Realm:
    """What every function of the metastore is given: whose resources, in which stores, with which clock and ids.

    Nothing outside the account can be reached through it.
    """

    stores: Stores
    account_id: str
    clock: Clock = utc_now
    ids: Callable[[], str] = random_id
    idempotency_ttl_s: float = 900.0
    closing_s: float = 30.0

    def all(self, kind: Kind[M]) -> Repository[M]:
        """The repository of a kind."""
        return Repository(self.stores, kind)

    def now(self) -> Timestamp:
        """The present moment, as messages hold it."""
        return timestamp(self.clock())


def timestamp(moment: datetime) -> Timestamp:
    """`moment` as messages hold it."""
    made = Timestamp()
    made.FromDatetime(moment)
    return made
