"""Logs, metrics, traces and the audit log of a process, and the context of the call they describe.

Import the module you need: `context`, `logs`, `metrics`, `traces` or `audit`. The package itself imports none of them, so
that importing `skiway.telemetry.context` alone is cheap.
"""

__all__: list[str] = []
