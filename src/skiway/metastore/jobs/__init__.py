"""Jobs: durable background work on connectors and tables.

The calls of clients are exported here. Workers take jobs from `queue`, and `attempts` reports their progress.
"""

from skiway.metastore.jobs.api import (
    cancel,
    cancel_all,
    enqueue,
    enqueue_unless_active,
    get,
    get_log,
    list_,
    scan,
)
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue, JobRules, Lease
