"""The generated messages match the .proto files, and their serialization is deterministic."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from skiway.model import v1
from skiway.model.v1 import catalog_pb2, directory_pb2, statistics_pb2

PROJECT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="needs grpcio-tools; to get it: make setup")
def test_generated_messages_are_current():
    script = PROJECT / "scripts" / "generate_model.py"
    run = subprocess.run([sys.executable, str(script), "--check"], check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_v1_exports_every_message():
    assert v1.Catalog is catalog_pb2.Catalog
    assert set(catalog_pb2.DESCRIPTOR.message_types_by_name) <= set(v1.__all__)
    assert v1.RK_TABLE == 4


@pytest.mark.parametrize("file", [catalog_pb2.DESCRIPTOR, directory_pb2.DESCRIPTOR, statistics_pb2.DESCRIPTOR])
def test_services_belong_to_package_skiway_v1(file: FileDescriptor):
    assert file.package == "skiway.v1"
    assert file.name.startswith("skiway/v1/")
    assert len(file.services_by_name) == 1


def test_serialization_does_not_depend_on_map_order():
    entries = {f"k{number}": str(number) for number in range(50)}
    forwards = v1.Catalog(properties=entries)
    backwards = v1.Catalog(properties=dict(reversed(entries.items())))
    assert forwards.SerializeToString(deterministic=True) == backwards.SerializeToString(deterministic=True)
