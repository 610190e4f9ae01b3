"""What a caller may demand of the stored version before a change."""

from __future__ import annotations

from skiway.errors import PreconditionFailed
from skiway.metastore.failures import failure
from skiway.metastore.repository import etag
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["check", "demands"]


def demands(precondition: v1.Precondition) -> bool:
    """Whether it says anything."""
    return precondition.HasField("expected_version") or precondition.HasField("expected_etag")


def check(precondition: v1.Precondition, pointer: Pointer, *, resource: str, name: str) -> None:
    """Raise unless all that is demanded holds for the resource at `pointer`."""
    if precondition.HasField("expected_version") and precondition.expected_version != pointer.version:
        expected, actual = str(precondition.expected_version), str(pointer.version)
        raise failure(
            PreconditionFailed, "version.mismatch", resource=resource, id=name, expected=expected, actual=actual
        )
    if precondition.HasField("expected_etag") and precondition.expected_etag != etag(pointer):
        expected, actual = precondition.expected_etag, etag(pointer)
        raise failure(PreconditionFailed, "etag.mismatch", resource=resource, id=name, expected=expected, actual=actual)
