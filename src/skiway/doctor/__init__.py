"""Checks of an installation: of the machine, of a home and its stores, and of a running server.

Each check finds evidence, and says what to do if something is wrong. No check changes anything.
"""

from skiway.doctor.checks import Check, Finding, Problem, State, examine, home_checks, machine_checks
from skiway.doctor.server import ServerAddress, server_checks

__all__ = [
    "Check",
    "Finding",
    "Problem",
    "ServerAddress",
    "State",
    "examine",
    "home_checks",
    "machine_checks",
    "server_checks",
]
