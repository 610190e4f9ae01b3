"""The schema `skiway` of every catalog: tables that show what the metastore knows.

`schema` serves it, `tables` lists what exists, `activity` lists jobs and recent scans.
"""

from skiway.lake.system.schema import SystemSchema

__all__ = ["SystemSchema"]
