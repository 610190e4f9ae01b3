"""How resources are stored: keys, kinds, repositories, conditional updates, idempotency keys and pages.

Every key of the pointer store is made in `keys`. A `Realm` is the metastore as one account sees it.
"""

from skiway.metastore.records.realm import PLATFORM, Realm
from skiway.metastore.records.repository import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Repository, Stored
