"""Blobs: immutable bytes, stored under the SHA-256 digest of their content."""
