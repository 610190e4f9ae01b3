"""All cases of the differential suite."""

from __future__ import annotations

from live.cases import Case
from live.name_cases import name_cases
from live.size_cases import size_cases
from live.statement_cases import statement_cases
from live.type_cases import type_cases

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (*type_cases(), *size_cases(), *name_cases(), *statement_cases())
