"""Maintenance of a store by its operator: check its integrity, back it up, and restore it.

All of it works on the stores of a running server. `Checker` reads them resource by resource and reports a defect only if it
persists; `write_backup` copies the pointers as of one moment, and then the blobs that they refer to.
"""

from skiway.metastore.maintenance.backup import Manifest, read_manifest, restore_backup, write_backup
from skiway.metastore.maintenance.integrity import Checker, Defect

__all__ = ["Checker", "Defect", "Manifest", "read_manifest", "restore_backup", "write_backup"]
