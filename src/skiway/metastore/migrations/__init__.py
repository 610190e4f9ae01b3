"""Migrations: steps that bring a store from the format of an older version to that of this one, forward only.

`migration` runs steps safely, and decides whether a server may work on an older store. `steps` has the steps. `format_watch`
tells a server that another one has migrated its store.
"""

from skiway.metastore.migrations.format_watch import watching_format
from skiway.metastore.migrations.migration import Step, migrate, pending_steps, require_usable, store_format
from skiway.metastore.migrations.steps import STEPS

__all__ = ["STEPS", "Step", "migrate", "pending_steps", "require_usable", "store_format", "watching_format"]
