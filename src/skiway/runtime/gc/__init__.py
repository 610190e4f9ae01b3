"""Scheduled garbage collection: when each sweep runs, on which server, and within which limits.

`schedule` runs the sweeps; `sweeps` builds them from the settings.
"""
