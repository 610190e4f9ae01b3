"""The definers of views: the callers with whose rights views are read, if that was declared for them."""

from __future__ import annotations

import json

from skiway.errors import InvalidArgument
from skiway.metastore.records.errors import failure
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import copied
from skiway.model import v1

__all__ = ["set_definer", "without_claims"]


def set_definer(realm: Realm, view: v1.View) -> None:
    """Record who defines the view, if it has definer rights: the caller."""
    view.ClearField("definer")
    if view.rights != v1.VR_DEFINER:
        return
    subject = None if realm.policies is None else realm.policies.subject
    if subject is None or not subject.name:
        raise failure(InvalidArgument, "view.definer.missing", field="rights")
    view.definer.subject = subject.name
    view.definer.roles.extend(sorted(subject.roles))
    view.definer.groups.extend(sorted(subject.groups))
    view.definer.claims_json = json.dumps(dict(subject.claims), sort_keys=True)


def without_claims(view: v1.View) -> v1.View:
    """The view without the roles, groups and claims of its definer."""
    if not view.HasField("definer"):
        return view
    shown = copied(view)
    shown.definer.CopyFrom(v1.ViewDefiner(subject=view.definer.subject))
    return shown
