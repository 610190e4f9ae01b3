"""All targets by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from fuzz.body_target import BodyTarget
from fuzz.file_target import DeltaTarget, IcebergTarget, ParquetTarget
from fuzz.filter_target import FilterTarget
from fuzz.flight_catalogs import LakeTarget, MemoryTarget, RecordedTarget
from fuzz.rest_target import RestTarget
from fuzz.rpc_target import RpcTarget
from fuzz.target import Target

TARGETS: Mapping[str, type[Target]] = {
    target.name: target
    for target in (
        RecordedTarget,
        MemoryTarget,
        LakeTarget,
        RpcTarget,
        RestTarget,
        FilterTarget,
        BodyTarget,
        ParquetTarget,
        DeltaTarget,
        IcebergTarget,
    )
}


def target_called(name: str) -> type[Target]:
    """The target with this name, or the class `module:name`."""
    if name in TARGETS:
        return TARGETS[name]
    module, _, kind = name.partition(":")
    found: type[Target] = getattr(import_module(module), kind)
    return found
