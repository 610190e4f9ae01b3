"""Search over what an account contains, and totals of it.

`indexes` keeps one index per account in memory, which all callers share, and updates it from the feed of events. `api` decides
at each call what the caller sees of it. What an answer shows is then read from the store, with the rights of the caller: the index only
decides which objects these are. The calls of `SearchService` are exported here.
"""

from skiway.metastore.search.api import get_summary, list_objects, search
from skiway.metastore.search.indexes import SearchIndexes
