"""Maintenance of managed tables: health reports, compaction, the expiry of snapshots, and the removal of orphan files.

The calls of clients are exported here. `optimizing`, `expiring` and `cleaning` do the work, `health` says what is worth
it, and `tasks` runs it in jobs. The same calls delete files here and in garbage collection, and all of them ask
`gc.references` which files are in use.
"""

from skiway.metastore.table_maintenance.api import MaintenanceArea, get, health, plan, start
