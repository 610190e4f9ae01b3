"""What checks find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from skiway.causes import cause_of
from skiway.errors import SkiwayError

__all__ = ["MAX_SKEW_S", "Check", "Finding", "Problem", "State", "examine"]

MAX_SKEW_S: Final = 5.0
"""By how much clocks may differ."""


class State(StrEnum):
    """The result of a check. A warning does not need to be acted on now."""

    ok = "ok"
    warning = "warning"
    failed = "failed"
    skipped = "skipped"


Check = Callable[[], str]
"""Returns the evidence that something works, or raises `Problem`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: the evidence and, if something is wrong, a fix."""

    check: str
    state: State
    evidence: str
    fix: str = ""


class Problem(Exception):
    """Raised by a check that finds something wrong, or that cannot run."""

    def __init__(self, evidence: str, fix: str = "", *, state: State = State.failed) -> None:
        super().__init__(evidence)
        self.evidence, self.fix, self.state = evidence, fix, state


def examine(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Run the checks, one after the other."""
    for name, check in checks.items():
        try:
            yield Finding(name, State.ok, check())
        except Problem as problem:
            yield Finding(name, problem.state, problem.evidence, problem.fix)
        except SkiwayError as error:
            evidence, _, fix = error.message.partition("; ")
            if not fix:
                evidence, _, fix = error.message.partition(": ")
            detail = f" ({error.detail})" if error.detail else ""
            yield Finding(name, State.failed, f"{evidence}{detail}", fix or "see the log of the server")
        except Exception as error:  # noqa: BLE001 - a check that fails must not end the others
            if (cause := cause_of(error)) is not None:
                yield Finding(name, State.failed, f"{cause.problem} ({error})", cause.remedy)
                continue
            yield Finding(
                name, State.failed, f"{type(error).__name__}: {error}", "the check itself failed: please report it"
            )
