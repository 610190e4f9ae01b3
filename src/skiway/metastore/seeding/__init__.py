"""The initial content of a store: an account with a catalog and, on request, demo tables.

`catalog` writes records, `iceberg` writes managed tables with rows, `mirror` writes files and a connector for them.
"""

from skiway.metastore.seeding.catalog import seed_demo, seed_home

__all__ = ["seed_demo", "seed_home"]
