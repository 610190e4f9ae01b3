"""Garbage collection: deletes unreachable pointers, blobs, jobs, secrets and warehouse files in small slices.

`sweeps` works on the stores. `warehouse` works on the files of managed tables, and knows which of them are in use.
"""

from skiway.metastore.gc.sweeps import (
    Slice,
    sweep_blobs,
    sweep_events,
    sweep_expired,
    sweep_jobs,
    sweep_pointers,
    sweep_secrets,
)
from skiway.metastore.gc.warehouse import sweep_table, sweep_transactions, sweep_warehouse
