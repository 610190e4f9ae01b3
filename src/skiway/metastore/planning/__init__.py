"""Scan planning: which files of a snapshot a query has to read, and the messages that describe them.

`Planner` prunes files with a filter. `scans` answers `FetchScanBundle`, and stores the plans of Iceberg clients.
"""

from skiway.metastore.planning.planner import Planner
