"""The versions in the log of a Delta table, from the names and the first facts of its commits.

delta-rs can tell the history too, but lets no other thread of Python run while it waits for storage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

from skiway.formats.files import Files, Found
from skiway.formats.locations import Location
from skiway.formats.source import Snapshot

__all__ = ["snapshots"]

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*")
_AT_ONCE: Final = 8


def snapshots(
    files: Files, table: Location, *, upto: int, since: int = 0, without: Set[int] = frozenset()
) -> list[Snapshot]:
    """The versions from `since` to `upto` that the log can still tell of, but for those in `without`."""
    listed = files.children(table / "_delta_log")[1]
    commits = _by_version(listed, _COMMIT)
    checkpoints = _by_version(listed, _CHECKPOINT)
    first = 0 if 0 in commits else min(checkpoints, default=upto)
    known = {**checkpoints, **commits}  # of an old version there may be a checkpoint only
    wanted = [version for version in sorted(known) if max(first, since) <= version <= upto and version not in without]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        infos = list(threads.map(lambda version: _info(files, commits.get(version)), wanted))
    return [_snapshot(version, info, known[version], first) for version, info in zip(wanted, infos, strict=True)]


def _by_version(listed: list[Found], form: re.Pattern[str]) -> dict[int, Found]:
    matched = [(form.fullmatch(each.location.name), each) for each in listed]
    return {int(found[1]): each for found, each in matched if found}


def _info(files: Files, commit: Found | None) -> dict[str, Any]:
    """What the writer noted about a commit; nothing for one that cannot be read, since rows do not depend on it."""
    if commit is None:
        return {}
    for line in files.read(str(commit.location)).splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            return {}
        if isinstance(action, dict) and isinstance(action.get("commitInfo"), dict):
            return dict(action["commitInfo"])
    return {}


def _snapshot(version: int, info: dict[str, Any], file: Found, first: int) -> Snapshot:
    noted = info.get("inCommitTimestamp", info.get("timestamp"))
    millis = noted if isinstance(noted, int) else file.modified_us // 1000
    return Snapshot(
        id=version,
        created_at=datetime.fromtimestamp(millis / 1000, UTC),
        parent_id=version - 1 if version > first else None,
        sequence_number=version,
        summary={"operation": str(info.get("operation", ""))},
    )
