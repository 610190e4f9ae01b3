"""One kind of things in a metastore."""

from __future__ import annotations

from dataclasses import dataclass

from skiway.client.metastore.calls import Calls

__all__ = ["Area"]


@dataclass(frozen=True, slots=True, repr=False)
class Area:
    """Where the verbs for one kind of things are: `lake.tables`."""

    _calls: Calls

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._calls.channel.location.text}"
