"""The catalog of catalogs, as plain functions of messages.

Each module holds one kind of resource and the calls on it: `catalogs.create(realm, request)`. A `Realm` says whose
resources are meant, where they are stored, and which clock and ids to use.
"""

from skiway.metastore.realm import PLATFORM, Realm, random_id

__all__ = ["PLATFORM", "Realm", "random_id"]
