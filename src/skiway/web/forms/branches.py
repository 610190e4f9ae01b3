"""Forms about branches of the lake: create and merge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from skiway.client.metastore.catalogs import BranchChange
from skiway.web.forms.fields import DESCRIPTION, Field, Form, Values, many, options
from skiway.web.rendering import path_to
from skiway.web.visits import Visit


def _create(visit: Visit, values: Values) -> str:
    made = visit.lake.branches.create(values["name"], description=values["description"], is_tag=values["kind"] == "tag")
    catalog = values["name"].rpartition("@")[0]
    return path_to("branches", f"{catalog}@{made.name}")


def _create_command(values: Values) -> list[str]:
    tag = ["--tag"] if values["kind"] == "tag" else []
    return ["branches", "create", values["name"], *tag, *options(("--description", values["description"]))]


def _merge(visit: Visit, values: Values) -> str:
    visit.lake.branches.merge(values["name"], ours=many(values["ours"]), theirs=many(values["theirs"]))
    return path_to("branches", values["name"])


def _merge_command(values: Values) -> list[str]:
    chosen = options(("--ours", many(values["ours"])), ("--theirs", many(values["theirs"])))
    return ["branches", "merge", values["name"], *chosen]


def _plan(visit: Visit, values: Values) -> dict[str, Any]:
    """What a merge would do."""
    ours = many(values["ours"])
    planned = visit.lake.branches.merge(values["name"], dry_run=True, ours=ours, theirs=many(values["theirs"]))
    results = [_result(each, ours) for each in planned.changes]
    conflicts = sum(
        bool(each.conflict) for each, result in zip(planned.changes, results, strict=True) if result != KEPT
    )
    merged = len(results) - results.count(KEPT)
    names = ("object", "on the branch", "on main", "a merge would")
    return {
        "columns": [{"name": name, "type": "VARCHAR"} for name in names],
        "rows": [
            [f"{each.kind} {each.name}", each.action, each.on_main or "unchanged", result]
            for each, result in zip(planned.changes, results, strict=True)
        ],
        "caption": f"{conflicts} of {len(results)} changes are in conflict: nothing would be merged"
        if conflicts
        else f"{merged} {'change' if merged == 1 else 'changes'} would be merged",
    }


def _result(change: BranchChange, ours: Sequence[str]) -> str:
    if change.plan == "keep" or {change.name, change.previous_name} & set(ours):
        return KEPT
    return change.conflict or {"publish": "take the state of the branch"}.get(
        change.plan, "append the rows of the branch"
    )


KEPT: Final = "keep main"
BRANCH: Final = Field("name", "Branch", hint="the catalog and the branch, such as lake@dev")

BRANCH_FORMS: Final[Mapping[str, Form]] = {
    "branch": Form(
        "Create a branch",
        "A branch is a catalog as it is now, with changes of its own. It copies no data. A tag is a branch that cannot be changed.",
        (BRANCH, Field("kind", "Kind", choices=("branch", "tag")), DESCRIPTION),
        _create,
        _create_command,
        None,
        {},
    ),
    "merge": Form(
        "Merge a branch",
        "Publishes all changes of the branch on main at once. If anything is in conflict and not named here, nothing is merged.",
        (
            BRANCH,
            Field(
                "ours", "Keep as on main", hint="objects in conflict, such as sales.people", required=False, many=True
            ),
            Field("theirs", "Take from the branch", hint="objects in conflict", required=False, many=True),
        ),
        _merge,
        _merge_command,
        None,
        {"plan": ("Dry run", _plan)},
        "Merge",
    ),
}
