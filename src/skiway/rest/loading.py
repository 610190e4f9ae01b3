"""A table as clients load it: where its metadata is, the metadata itself, and how its files are reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from skiway.rest.answers import Answer
from skiway.rest.calls import Asked

__all__ = ["loaded"]

_SHOWN: Final = ("s3.endpoint", "s3.region", "client.region", "s3.path-style-access", "s3.force-virtual-addressing")
"""What of the warehouse's settings clients are told: never credentials, they bring their own."""


def loaded(asked: Asked, metadata: str, location: str | None, *, headers: Mapping[str, str] | None = None) -> Answer:
    """The answer of a load, a creation or a commit; `metadata` is JSON already. A table that is staged has no location."""
    properties = asked.lake.warehouse.properties
    config = {name: properties[name] for name in _SHOWN if name in properties}
    where = f'"metadata-location": {json.dumps(location)}, ' if location else ""
    body = f'{{{where}"metadata": {metadata}, "config": {json.dumps(config)}}}'
    return Answer(200, body.encode(), headers or {})
