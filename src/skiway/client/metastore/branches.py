"""Branches of the lake: catalogs as they were at one moment, with changes of their own that can be merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from skiway.client.metastore.collection import Area
from skiway.client.metastore.resources import Attribute, enum_name
from skiway.model import v1


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of the lake, or a tag, which cannot be written."""

    message: v1.Branch

    name = Attribute[str]("display_name")
    """Its name without that of the catalog."""
    description = Attribute[str]()
    """A description for users."""
    owner = Attribute[str]()
    """Who created it."""
    is_tag = Attribute[bool]()
    """Whether it is a tag."""
    created_at = Attribute[datetime]()
    """When it was created."""
    merged_by = Attribute[str]()
    """Who merged it; empty if it is not merged."""
    damage = Attribute[str]()
    """A description of damage to its record; empty if there is none."""

    @property
    def state(self) -> str:
        """`open`, `merging` or `merged`."""
        return enum_name(v1.BranchState.Name(self.message.state))


@dataclass(frozen=True, slots=True)
class BranchChange:
    """An object that a branch has changed, what happened to it on main, and what a merge does with it."""

    message: v1.BranchChange

    kind = Attribute[str]()
    """`namespace`, `table` or `view`."""
    name = Attribute[str]()
    """The name with that of the namespace."""
    action = Attribute[str]()
    """`created`, `changed`, `renamed` or `dropped`."""
    previous_name = Attribute[str]()
    """The name before it was renamed."""
    on_main = Attribute[str]()
    """What happened on main since the branch was created; empty if nothing did."""
    plan = Attribute[str]()
    """What a merge does: `publish` the state of the branch, `append` its rows, or `keep` that of main."""
    conflict = Attribute[str]()
    """Why it cannot be merged; empty if it can."""
    rows_on_main = Attribute[int | None]()
    """The rows on main; None if they are unknown, or withheld by a policy."""
    rows_on_branch = Attribute[int | None]()
    """The rows on the branch; None if they are unknown, or withheld by a policy."""
    rows_added = Attribute[int | None]()
    """The rows in the files that the branch has added."""
    rows_removed = Attribute[int | None]()
    """The rows in the files that the branch has removed."""
    snapshots = Attribute[int]()
    """How many snapshots only the branch has."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge, or the plan of one: the branch, and what it has changed."""

    branch: Branch
    changes: tuple[BranchChange, ...]

    @property
    def conflicts(self) -> list[str]:
        """Why changes cannot be merged."""
        return [each.conflict for each in self.changes if each.conflict]


class Branches(Area):
    """`lake.branches`: names are those of a catalog and a branch of it, such as `lake@dev`."""

    def __call__(self, catalog: str = "") -> list[Branch]:
        """Return the branches and tags of a catalog, or of all catalogs, by name."""
        return list(map(Branch, self._calls.rpc("ListBranches", catalog=catalog).branches))

    def get(self, name: str) -> Branch:
        """Return a branch."""
        return Branch(self._calls.rpc("GetBranch", name=name).branch)

    def create(self, name: str, *, description: str = "", is_tag: bool = False) -> Branch:
        """Create a branch of a catalog as it is now, or a tag."""
        return Branch(self._calls.rpc("CreateBranch", name=name, description=description, is_tag=is_tag).branch)

    def delete(self, name: str) -> Branch:
        """Delete a branch, and what only it has."""
        return Branch(self._calls.rpc("DeleteBranch", name=name).branch)

    def diff(self, name: str) -> list[BranchChange]:
        """Return what a branch has changed."""
        return list(map(BranchChange, self._calls.rpc("DiffBranch", name=name).changes))

    def merge(
        self, name: str, *, dry_run: bool = False, ours: Sequence[str] = (), theirs: Sequence[str] = ()
    ) -> Merged:
        """Publish all changes of a branch on main at once, or none.

        Objects in conflict that are named in `ours` stay as they are on main, those in `theirs` become as on the branch.
        """
        done = self._calls.rpc("MergeBranch", name=name, dry_run=dry_run, ours=ours, theirs=theirs)
        return Merged(Branch(done.branch), tuple(map(BranchChange, done.changes)))
