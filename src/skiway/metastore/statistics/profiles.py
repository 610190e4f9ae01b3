"""Stored profiles of a table's data files: parts that hold them, and an index that names the valid parts.

A part and the index that names it are published in one batch. Both are deleted with the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256

from skiway.errors import AlreadyExists, Contention, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import Kind
from skiway.metastore.records.parents import inside
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.resources import hierarchy
from skiway.model import v1

__all__ = ["ProfileIndex", "ProfileRecords"]


@dataclass(frozen=True, slots=True)
class ProfileIndex:
    """The index as it was read: `content` is an Arrow file, empty if there is no index yet."""

    content: bytes
    stored: Stored[v1.FileStatsSet] | None


@dataclass(frozen=True, slots=True)
class ProfileRecords:
    """The records of a table's profiles. Parts are addressed by the digest of their content."""

    realm: Realm
    table_id: v1.ResourceId

    def index(self) -> ProfileIndex:
        """The index in its current state."""
        found = self._indexes.find(self._index_key)
        return ProfileIndex(found.value.arrow_file if found else b"", found)

    def part(self, digest: str) -> bytes:
        """The content of a part. Raise `NotFound` if it was deleted."""
        return self._parts.require(self._part_key(digest), name=digest).value.arrow_file

    def publish(self, before: ProfileIndex, *, part: bytes, index: bytes) -> None:
        """Store a part together with the index that names it.

        Raise `Contention` if the index changed since it was read, and `NotFound` if the table was deleted.
        """
        table = hierarchy.table(self.realm, self.table_id)
        also = [*self._parts.reservation(self._message(part))[1], *inside(table.pointer)]
        try:
            if before.stored is None:
                self._indexes.create(self._message(index), also=lambda _: also)
            else:
                self._indexes.update(before.stored, self._message(index), also=lambda _: also)
        except (AlreadyExists, NotFound, PreconditionFailed) as error:
            raise Contention(f"the profiles of table {self.table_id.id} were changed by others: {error}") from None

    def delete_parts(self, *, except_those: Callable[[], Collection[str]]) -> None:
        """Delete all parts except those that the function returns. It is called after the parts are listed."""
        found = list(self.realm.stores.pointers.scan(self._part_key()))
        remaining = set(map(self._part_key, except_those()))
        for pointer in found:
            if pointer.key not in remaining:
                self._parts.delete(pointer, v1.FileStatsSet())

    @staticmethod
    def digest(part: bytes) -> str:
        """The digest that a part with this content has."""
        return sha256(part).hexdigest()

    def _message(self, arrow_file: bytes) -> v1.FileStatsSet:
        identity = v1.ResourceId(account_id=self.realm.account_id, id=self.table_id.id, kind=v1.RK_TABLE)
        return v1.FileStatsSet(table_id=identity, arrow_file=arrow_file, updated_at=self.realm.now())

    @property
    def _index_key(self) -> str:
        return keys.profile_index(self.realm.account_id, self.table_id.id)

    def _part_key(self, digest: str = "") -> str:
        return keys.profile_part(self.realm.account_id, self.table_id.id, digest)

    @property
    def _indexes(self) -> Repository[v1.FileStatsSet]:
        return self.realm.all(Kind("profile_index", v1.FileStatsSet, title=_title, key=lambda _: self._index_key))

    @property
    def _parts(self) -> Repository[v1.FileStatsSet]:
        return self.realm.all(
            Kind(
                "profiles",
                v1.FileStatsSet,
                title=_title,
                key=lambda part: self._part_key(self.digest(part.arrow_file)),
            )
        )


def _title(of: v1.FileStatsSet) -> str:
    return of.table_id.id
