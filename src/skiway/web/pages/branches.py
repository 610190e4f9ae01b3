"""Branches of the lake: those of a catalog, what one has changed, and what is on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from skiway.client.metastore import View
from skiway.client.metastore.catalogs import Branch, BranchChange
from skiway.metastore.records.names import BRANCH_MARK
from skiway.presentation.tables import picked, row_count, table_format
from skiway.web.forms.fields import many
from skiway.web.visits import Page, Visit, optional

MAX_COMPARED: Final = 20
"""How many branches a page compares with main to show how much they have changed."""
PART: Final = 100


def branches(visit: Visit) -> Page:
    """All branches and tags, those of a catalog, or one of them with what it has changed."""
    if visit.branch:
        return _branch(visit, visit.name("branch"))
    parents = [visit.name("catalog")] if visit.names else [each.name for each in visit.lake.catalogs()]
    found = [(f"{parent}{BRANCH_MARK}{each.name}", each) for parent in parents for each in visit.lake.branches(parent)]
    compared = {name for name, each in islice((one for one in found if one[1].state == "open"), MAX_COMPARED)}
    data = {
        "catalog": visit.names[0] if visit.names else "",
        "branches": [
            {
                **branch_data(name, each),
                "changes": _count(visit, name) if name in compared and not each.is_tag else None,
            }
            for name, each in found
        ],
    }
    return Page("branches.html", "Branches", data)


def branch_data(name: str, branch: Branch) -> dict[str, Any]:
    """A branch as pages show it. Its full name is that of the catalog with the objects on the branch."""
    facts = picked(branch, "state", "is_tag", "description", "owner", "created_at", "merged_by", "damage")
    return {"name": name, "catalog": name.rpartition(BRANCH_MARK)[0], "own_name": branch.name, **facts}


def _count(visit: Visit, name: str) -> int | None:
    found, _ = optional(lambda: visit.lake.branches.diff(name))
    return None if found is None else len(found)


def _branch(visit: Visit, name: str) -> Page:
    """A branch with what it has changed. The parameters `ours` and `theirs` name objects in conflict, and what is to become of them."""
    branch = branch_data(name, visit.lake.branches.get(name))
    chosen = {side: many(visit.query.get(side, "")) for side in ("ours", "theirs")}
    is_merged = branch["state"] == "merged"  # then main differs because of the merge
    changes, reason = ([], "") if is_merged else optional(lambda: visit.lake.branches.diff(name))
    shown = [_change(each, branch, chosen) for each in changes or ()]
    data = {
        "branch": branch,
        "changes": shown,
        "reason": reason,
        "conflicts": sum(bool(each["conflict"]) for each in shown),
        "left": sum(bool(each["conflict"]) and not each["choice"] for each in shown),
        "chosen": {side: ", ".join(names) for side, names in chosen.items() if names},
    }
    return Page("branch.html", name, data)


def _change(change: BranchChange, branch: Mapping[str, Any], chosen: Mapping[str, list[str]]) -> dict[str, Any]:
    facts = picked(change, "kind", "name", "action", "previous_name", "on_main", "plan", "conflict", "snapshots")
    counts = picked(change, "rows_on_main", "rows_on_branch", "rows_added", "rows_removed")
    path = change.name.split(".")
    is_on_main = change.action != "created" and change.on_main != "dropped"
    others = {side: [each for each in names if each != change.name] for side, names in chosen.items()}
    return {
        **facts,
        **counts,
        "path_on_branch": [] if change.action == "dropped" else [branch["name"], *path],
        "path_on_main": [branch["catalog"], *(change.previous_name.split(".") if change.previous_name else path)]
        if is_on_main
        else [],
        "choice": next((side for side, names in chosen.items() if change.name in names), ""),
        "choices": {
            side: {
                name: ", ".join([*names, change.name] if name == side else names)
                for name, names in others.items()
                if names or name == side
            }
            for side in chosen
        },
    }


# --- what is on a branch -----------------------------------------------------------------------------------------------


def contents(visit: Visit) -> Page:
    """A catalog or a namespace on a branch. The search index knows main only, so its members are listed."""
    path, there = visit.names, visit.there
    branch = branch_data(path[0], visit.lake.branches.get(path[0]))
    number = visit.number("page", 1, most=10_000)
    below = [{"path": list(each.path), "tables": None} for each in islice(there.namespaces(path), 1000)]
    comment = there.namespaces.get(path).description if len(path) > 1 else branch["description"]
    members = islice(_members(visit), (number - 1) * PART, number * PART + 1) if len(path) > 1 else ()
    found = list(members)
    data = {
        "path": list(path),
        "kind": "namespace" if len(path) > 1 else "tag" if branch["is_tag"] else "branch",
        "branch": branch,
        "comment": comment or "",
        "namespaces": below,
        "members": found[:PART],
        "total": None,
        "page": number,
        "pages": number + (len(found) > PART),
        "incomplete": None,
    }
    return Page("catalog.html", ".".join(path), data)


def _members(visit: Visit) -> Iterator[dict[str, Any]]:
    path, there = visit.names, visit.there
    views = (_view(path, each) for each in there.views(path))
    sizes = (
        {
            "path": [*path, table.name],
            "kind": "table",
            "format": table_format(table),
            "rows": None if size is None else row_count(size.row_count, is_bound=size.row_count_is_bound),
            "rows_are_bound": bool(size and size.row_count_is_bound),
            "size_bytes": None if size is None else size.total_size_bytes,
            "comment": (table.description or "")[:200],
            "problem": table.problem or "",
        }
        for table, size in there.tables.with_sizes(path, page_size=PART)
    )
    return chain(views, sizes)


def _view(path: tuple[str, ...], view: View) -> dict[str, Any]:
    empty = dict.fromkeys(("rows", "size_bytes"))
    facts = {"kind": "view", "format": "", "rows_are_bound": False, "problem": ""}
    return {"path": [*path, view.name], **facts, **empty, "comment": (view.description or "")[:200]}
