"""The pages of forms, and those that ask before something is deleted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from skiway.errors import InvalidArgument, NotFound, PermissionDenied, SkiwayError, Unauthorized
from skiway.presentation.tables import picked
from skiway.web.forms.access import ACCESS_FORMS
from skiway.web.forms.branches import BRANCH_FORMS
from skiway.web.forms.fields import Form, check, command_of, entry_of, given, segments_of
from skiway.web.forms.objects import OBJECT_FORMS
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, Visit

FORMS: Final[Mapping[str, Form]] = {**ACCESS_FORMS, **OBJECT_FORMS, **BRANCH_FORMS}
"""The forms, by the word in their address."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What destroys something, after it has asked."""

    remove: Callable[[Visit, Sequence[str]], str]
    command: Callable[[Sequence[str]], Sequence[str]]
    warning: str


def _deleted(plural: str, page: str) -> Callable[[Visit, Sequence[str]], str]:
    def remove(visit: Visit, names: Sequence[str]) -> str:
        getattr(visit.lake, plural).delete(names[0])
        return page

    return remove


def _revoke(visit: Visit, names: Sequence[str]) -> str:
    kind: Any = names[2]
    visit.lake.grants.revoke(names[0], names[1], kind=kind)
    return "/access"


def _drop_view(visit: Visit, names: Sequence[str]) -> str:
    visit.lake.views.delete(segments_of(names[0], 3))
    return "/"


def _named(plural: str) -> Callable[[Sequence[str]], Sequence[str]]:
    return lambda names: [plural, "delete", names[0]]


REMOVALS: Final[Mapping[str, Removal]] = {
    "grant": Removal(
        _revoke,
        lambda names: ["grants", "delete", names[0], "--to", names[1], "--kind", names[2]],
        "The caller loses the privilege at once. Privileges on what contains the object remain.",
    ),
    "policy": Removal(
        _deleted("policies", "/policies"), _named("policies"), "Callers see what it hid, from their next statement on."
    ),
    "rule": Removal(_deleted("rules", "/"), _named("rules"), "Its results are deleted, too."),
    "webhook": Removal(
        _deleted("webhooks", "/webhooks"), _named("webhooks"), "Events that wait for it are never sent."
    ),
    "connector": Removal(
        _deleted("connectors", "/connectors"), _named("connectors"), "Its tables are no longer synchronized."
    ),
    "branch": Removal(
        _deleted("branches", "/branches"),
        _named("branches"),
        "What only the branch has is lost. Main stays as it is.",
    ),
    "view": Removal(_drop_view, _named("views"), "Whoever reads the view gets an error."),
}
"""What can be deleted, by kind. The names are those in the address."""
BACK: Final = {"grant": "/access", "policy": "/policies", "rule": "/", "view": "/"}
"""Where those lead that have no page of their own."""


def form(visit: Visit) -> Page:
    """A form, filled with the values in the address, and what does the same."""
    kind = _known(FORMS, visit)
    return _filled(kind, given(FORMS[kind], visit.query))


def send_form(visit: Visit) -> Page | Redirect:
    """Make the change of a form, or try it: what was wrong is shown in the form."""
    kind = _known(FORMS, visit)
    shown, action = FORMS[kind], visit.form.get("action", "make")
    values = given(shown, visit.form)
    try:
        if action == "make":
            check(shown, values)
            return Redirect(shown.make(visit, values))
        if action not in shown.act:
            raise InvalidArgument(f"{action[:40]!r} is not an action of this form", key="form.invalid")
        found = shown.act[action][1](visit, values)
    except (Unauthorized, PermissionDenied):
        raise
    except SkiwayError as error:
        return _filled(kind, values, error=error.message, status=400)
    more: Any = {"preview" if "rows" in found else "outcome": found}
    return _filled(kind, values, **more)


def _known(kinds: Mapping[str, Any], visit: Visit) -> str:
    kind = visit.names[0] if visit.names else ""
    if kind not in kinds:
        raise NotFound(f"there is no form {kind[:40]!r}: choose {', '.join(kinds)}", key="page.unknown")
    return kind


def _filled(kind: str, values: Mapping[str, str], *, error: str = "", status: int = 200, **more: Any) -> Page:
    shown = FORMS[kind]
    data = {
        **picked(shown, "title", "about", "button"),
        "kind": kind,
        "fields": [asdict(field) for field in shown.fields],
        "values": {field.name: "" if field.kind == "password" else values[field.name] for field in shown.fields},
        "actions": [(name, label) for name, (label, _) in shown.act.items()],
        "command": command_of(shown, values),
        "entry": entry_of(shown, values),
        "error": error,
        "outcome": None,
        "preview": None,
        **more,
    }
    return Page("form.html", shown.title, data, status)


def ask_to_delete(visit: Visit) -> Page:
    """Ask before something is deleted."""
    kind, names = _removal(visit)
    removal = REMOVALS[kind]
    data = {
        "kind": kind,
        "names": names,
        "warning": removal.warning,
        "command": shlex.join(["skiway", *removal.command(names)]),
        "back": BACK.get(kind, path_to("branches" if kind == "branch" else f"{kind}s", *names)),
    }
    return Page("delete.html", f"Delete {names[0]}", data)


def delete(visit: Visit) -> Redirect:
    """Delete something, after the page has asked."""
    kind, names = _removal(visit)
    return Redirect(REMOVALS[kind].remove(visit, names))


def _removal(visit: Visit) -> tuple[str, tuple[str, ...]]:
    kind, names = _known(REMOVALS, visit), visit.names[1:]
    if len(names) != (3 if kind == "grant" else 1):
        raise NotFound(f"the address does not name a {kind} to delete", key="page.unknown")
    return kind, names
