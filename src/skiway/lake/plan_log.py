"""Which files recent scans of this process looked at, and which their filters spared them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from skiway.security import utc_now

__all__ = ["Plan", "PlanLog"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One scan as it was planned. `account_id` is whose table it was; sizes are those of whole files."""

    account_id: str
    planned_at: datetime
    subject: str
    catalog: str
    schema_name: str
    table_name: str
    snapshot_id: int | None
    filter: str
    columns: list[str] | None
    files_considered: int
    files_read: int
    bytes_considered: int
    bytes_read: int
    endpoints: int


class PlanLog:
    """The last plans, of all callers."""

    def __init__(self, keep: int = 1000, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.clock = clock
        self._plans: deque[Plan] = deque(maxlen=keep)

    def add(self, plan: Plan) -> None:
        """Remember a plan, and forget the oldest if there are too many."""
        self._plans.append(plan)

    def of_account(self, account_id: str) -> list[Plan]:
        """Those about tables of an account, older ones first."""
        return [plan for plan in list(self._plans) if plan.account_id == account_id]
