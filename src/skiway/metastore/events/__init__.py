"""Events: the feed of an account, with every committed change.

The calls of `EventService` are exported here. `records.journal` adds events to all batches, `feed` puts them in order.
"""

from skiway.metastore.events.api import EventRules, list_, watch
from skiway.metastore.events.feed import sequence_pending

__all__ = ["EventRules", "list_", "sequence_pending", "watch"]
