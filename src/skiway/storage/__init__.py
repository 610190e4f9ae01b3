"""Storage: immutable blobs, and pointers to them that change by compare-and-set.

>>> from skiway.storage import ABSENT, open_stores
>>> with open_stores("memory://") as stores:
...     uri = stores.blobs.put(b"a table", folder="tables", suffix=".pb")
...     created = stores.pointers.compare_and_set("/tables/people", uri, expect=ABSENT)
...     stores.blobs.get(created.blob_uri)
b'a table'
"""

from skiway.foundation.clock import Clock, utc_now
from skiway.storage.blobs.store import BlobHead, BlobStore, blob_digest, blob_uri
from skiway.storage.calls import FORMAT_VERSION, CallCounter, OnCall, Page, StoreCall, StoreFormat
from skiway.storage.opening import Stores, open_blobs, open_pointers, open_stores
from skiway.storage.pointers.store import ABSENT, Check, Delete, Operation, Pointer, PointerStore, Put, require

__all__ = [
    "ABSENT",
    "FORMAT_VERSION",
    "BlobHead",
    "BlobStore",
    "CallCounter",
    "Check",
    "Clock",
    "Delete",
    "OnCall",
    "Operation",
    "Page",
    "Pointer",
    "PointerStore",
    "Put",
    "StoreCall",
    "StoreFormat",
    "Stores",
    "blob_digest",
    "blob_uri",
    "open_blobs",
    "open_pointers",
    "open_stores",
    "require",
    "utc_now",
]
