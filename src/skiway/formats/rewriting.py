"""Tables of other programs whose files this program can rewrite in place, if the operator allows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["Packed", "RewritableTable", "SizedFile"]


@dataclass(frozen=True, slots=True)
class SizedFile:
    """A file, and how large it is."""

    location: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """How many files became how many, and their sizes."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class RewritableTable(ABC):
    """A table whose files can be packed, and whose unused files can be removed."""

    @abstractmethod
    def check_rewritable(self) -> None:
        """Raise `PermissionDenied` if the operator does not allow it, and `Unsupported` if the table needs what cannot be kept."""

    @abstractmethod
    def packable(self, target_bytes: int) -> list[SizedFile]:
        """The files that `pack` would rewrite: small ones of partitions that have several."""

    @abstractmethod
    def pack(self, *, target_bytes: int = 0, z_order: Sequence[str] = ()) -> Packed:
        """Pack small files, or rewrite all in a z-order. Raise `Conflict` if other writers were faster."""

    @abstractmethod
    def remove_unused(
        self, *, older_than: timedelta | None, keep: Collection[int], dry_run: bool = True
    ) -> list[SizedFile]:
        """Delete files that neither the current snapshot nor those in `keep` use, and that were not used or written since an age.

        Without an age, it is that of the table. In a dry run, they are only listed.
        """
