"""Scan planning: which files of a snapshot a query has to read, and the messages that describe them.

`Planner` prunes files with a filter; `scan_bundles` answers `FetchScanBundle`.
"""

from skiway.metastore.planning.planner import Planner
