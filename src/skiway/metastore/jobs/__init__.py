"""Jobs: durable background work on connectors and tables.

The calls of clients are exported here. Workers take jobs from `queue`; `schedule` adds the jobs that policies ask for.
"""

from skiway.metastore.jobs.api import cancel, cancel_all, enqueue, enqueue_profile, enqueue_unless_active, get, list_
from skiway.metastore.jobs.records import JobRules, Progress, Stage

__all__ = [
    "JobRules",
    "Progress",
    "Stage",
    "cancel",
    "cancel_all",
    "enqueue",
    "enqueue_profile",
    "enqueue_unless_active",
    "get",
    "list_",
]
