"""Maintenance of managed tables: health reports, compaction, the expiry of snapshots, and the removal of orphan files.

The calls of clients are exported here. `optimizing` and `cleaning` do the work, `tasks` runs it in jobs, on request or by the
properties of tables, and `api` says what is worth it. Garbage collection uses the same functions of `gc.warehouse` to find files
that are in use.
"""

from skiway.metastore.table_maintenance.api import MaintenanceArea, get, health, plan, start
