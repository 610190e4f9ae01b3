"""When a connector is synced by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from skiway.config.values import DURATION

if TYPE_CHECKING:
    from skiway.model import v1

__all__ = ["Every", "interval_of", "policy_of"]

NEVER: Final = "never"

Every = Annotated[
    str | None,
    typer.Option("--every", metavar="TIME", help="Sync it by itself so often: 10m, 1h, 1d; never: only when told."),
]


def policy_of(every: str, before: v1.ConnectorPolicy | None = None) -> v1.ConnectorPolicy:
    """What a connector is to do by itself; the rest as it was."""
    from skiway.model import v1

    policy = v1.ConnectorPolicy()
    if before is not None:
        policy.CopyFrom(before)
    policy.enabled = every != NEVER
    if policy.enabled:
        policy.interval.FromTimedelta(_time(every))
    return policy


def interval_of(policy: v1.ConnectorPolicy) -> timedelta | None:
    """How often a connector is synced by itself; None for one that is not."""
    return policy.interval.ToTimedelta() if policy.enabled and policy.HasField("interval") else None


def _time(text: str) -> timedelta:
    try:
        return DURATION.read(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {DURATION.takes}, or {NEVER}", param_hint="--every") from None
