"""Scheduled garbage collection: when each sweep runs, on which server, and within which limits.

`Schedule` runs the sweeps; `sweeps` builds them from the settings.
"""

from skiway.runtime.gc.schedule import Schedule, Sweep, Tick

__all__ = ["Schedule", "Sweep", "Tick"]
