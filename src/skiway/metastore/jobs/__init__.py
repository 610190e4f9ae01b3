"""Jobs: durable background work on connectors and tables.

The calls of clients are exported here. Workers take jobs from `queue`; `schedule` adds the jobs of connector policies.
"""

from skiway.metastore.jobs.api import (
    cancel,
    cancel_all,
    enqueue,
    enqueue_check,
    enqueue_maintenance,
    enqueue_pipeline,
    enqueue_pipeline_unless_active,
    enqueue_profile,
    enqueue_profile_unless_active,
    enqueue_unless_active,
    get,
    get_log,
    list_,
    scan,
)
from skiway.metastore.jobs.attempts import Progress, Stage
from skiway.metastore.jobs.queue import JobQueue, JobRules, Lease
