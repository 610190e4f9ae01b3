"""Steps of a load that are published together: what is written stays described in files, so that the next attempt continues.

Nothing refers to these files. If a load is never continued, garbage collection deletes them like other files that no table has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from skiway.errors import SkiwayError
from skiway.formats.iceberg.writing.data_files import StagedManifest, read_staged, write_staged
from skiway.metastore.ingest.positions import Position, StoredPosition
from skiway.metastore.ingest.rows import Target, Written

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


@dataclass(frozen=True, slots=True)
class Staging:
    """The steps of one load of a target."""

    target: Target
    prefix: str

    @classmethod
    def of(cls, target: Target, before: StoredPosition, after: Position, steps: Sequence[int]) -> Staging:
        """The steps between two positions. They can be used as long as the target has the same columns and partitions."""
        metadata = target.metadata
        facts = [str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id]
        known = json.dumps([*facts, before.snapshot_id, after, steps], sort_keys=True)
        digest = sha256(known.encode()).hexdigest()[:24]
        return cls(target, f"{metadata.location}/metadata/ingest-step-{digest}")

    def find(self, number: int) -> Written | None:
        """What a step has written; None if it was not finished."""
        try:
            found = json.loads(self.target.files.read(self._place(number)))
            manifest = found["manifest"]
            files: list[DataFile] = (
                [] if manifest is None else read_staged(self.target.files, StagedManifest(**manifest))
            )
            return Written(tuple(files), found["rows"])
        except (SkiwayError, OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, number: int, written: Written) -> None:
        """Describe what a step has written."""
        target = self.target
        manifest = asdict(write_staged(target.files, target.metadata, written.files)) if written.files else None
        place, data = self._place(number), json.dumps({"manifest": manifest, "rows": written.rows}).encode()
        target.files.remove([place])
        target.files.write(place, data)

    def forget(self, steps: int) -> None:
        """Remove the descriptions, after the load was published, or cannot be."""
        places = [self._place(number) for number in range(steps)]
        for place in places:
            try:
                manifest = json.loads(self.target.files.read(place))["manifest"]
            except (SkiwayError, OSError, ValueError, KeyError, TypeError):
                continue
            if manifest is not None:
                self.target.files.remove([manifest["location"]])
        self.target.files.remove(places)

    def _place(self, number: int) -> str:
        return f"{self.prefix}-{number:05}.json"
