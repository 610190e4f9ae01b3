"""Which access a caller has to the files of a table."""

from __future__ import annotations

from dataclasses import dataclass

from skiway.formats import Location, location
from skiway.metastore import Realm
from skiway.metastore.records.access import AccessDecision
from skiway.model import v1

__all__ = ["TableAccess", "table_access"]


@dataclass(frozen=True, slots=True)
class TableAccess:
    """Access of one caller to the folder of one table: to read its files and, if `writes`, to add and delete files.

    `everywhere` tells whether the caller has the same access to all tables of the account.
    """

    account_id: str
    caller: str
    folder: Location
    writes: bool
    everywhere: bool = False

    @property
    def prefix(self) -> str:
        """The start of the locations of all files in the folder."""
        return f"{self.folder}/"

    @property
    def word(self) -> str:
        """The access in one word, for the audit trail."""
        return "write" if self.writes else "read"


def table_access(realm: Realm, decision: AccessDecision | None, table: v1.Table, folder: str) -> TableAccess | None:
    """The access of the caller to the files in `folder`, which are those of `table`; None if they are on a disk.

    Raises `PermissionDenied` if the caller may not read the table, or if a policy restricts what it sees of it.
    Without a decision the caller is the server itself, which may do everything.
    """
    realm.require_unrestricted(table)
    if decision is not None:
        decision.require("table.read", table)
    place = location(folder)
    if place.scheme == "file":
        return None
    writes = decision is None or decision.may("table.write", table)
    permission = "table.write" if writes else "table.read"
    unrestricted = realm.policies is None or not realm.policies.restrict_anything
    everywhere = unrestricted and (decision is None or decision.everywhere(permission))
    return TableAccess(realm.account_id, realm.caller, place, writes, everywhere)
