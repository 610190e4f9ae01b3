"""Blobs: immutable bytes, stored under the SHA-256 digest of their content.

`store` defines `BlobStore`; `objects` implements it with obstore in memory, on disk and in S3.
"""

from skiway.storage.blobs.store import BlobHead, BlobStore, blob_digest, blob_uri

__all__ = ["BlobHead", "BlobStore", "blob_digest", "blob_uri"]
