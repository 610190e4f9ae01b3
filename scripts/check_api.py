"""Check that the gRPC API still understands the clients of the last release; `make lint` runs it.

It compares the files in `proto/` with those of the last tag. Names count as well as numbers: setup files and JSON use them. A field or a
value of an enum may be removed if its number and its name are reserved.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


def breaks(old: FileDescriptorSet, new: FileDescriptorSet) -> Iterator[str]:
    """What a client of the old API can no longer do, as lines for people."""
    yield from _removed("message", _messages(old), _messages(new), _message_breaks)
    yield from _removed("enum", _enums(old), _enums(new), _enum_breaks)
    yield from _removed("service", _services(old), _services(new), _service_breaks)


def compiled(folder: Path) -> FileDescriptorSet:
    """The descriptors of all files in a folder."""
    with tempfile.NamedTemporaryFile() as out:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.proto"))
        options = [f"--proto_path={folder}", f"--proto_path={files('grpc_tools') / '_proto'}"]
        if protoc.main(["protoc", *options, f"--descriptor_set_out={out.name}", *names]):
            raise SystemExit(f"the files in {folder} cannot be compiled: see above")
        return FileDescriptorSet.FromString(Path(out.name).read_bytes())


def _removed(
    kind: str, old: Mapping[str, T], new: Mapping[str, T], compare: Callable[[str, T, T], Iterator[str]]
) -> Iterator[str]:
    for name, before in old.items():
        if name not in new:
            yield f"{kind} {name} was removed"
        else:
            yield from compare(name, before, new[name])


def _message_breaks(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    fields = {field.number: field for field in new.field}
    reserved = {number for each in new.reserved_range for number in range(each.start, min(each.end, each.start + 1000))}
    for field in old.field:
        now = fields.get(field.number)
        if now is None and (field.number not in reserved or field.name not in new.reserved_name):
            yield f'field {name}.{field.name} was removed: write `reserved {field.number}; reserved "{field.name}";`'
        elif now is not None and _shape(now, new) != _shape(field, old):
            yield f"field {name}.{field.name} = {field.number} was changed: {_shape(field, old)} is now {_shape(now, new)}"


def _shape(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """The name and the type of a field, and the oneof that it belongs to."""
    label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
    of = field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    group = f" in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
    return f"{label} {of} {field.name}{group}"


def _enum_breaks(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    values = {value.number: value.name for value in new.value}
    reserved = {
        number for each in new.reserved_range for number in range(each.start, min(each.end, each.start + 999) + 1)
    }
    for value in old.value:
        if values.get(value.number) != value.name and value.number not in reserved:
            yield f"value {name}.{value.name} = {value.number} was removed or renamed"


def _service_breaks(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[str]:
    methods = {method.name: method for method in new.method}
    for method in old.method:
        now = methods.get(method.name)
        if now is None:
            yield f"method {name}.{method.name} was removed"
        elif (now.input_type, now.output_type, now.client_streaming, now.server_streaming) != (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        ):
            yield f"method {name}.{method.name} was changed: its request, its response or its streams differ"


def _messages(of: FileDescriptorSet) -> Mapping[str, DescriptorProto]:
    def nested(above: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        yield f"{above}.{message.name}", message
        for inner in message.nested_type:
            yield from nested(f"{above}.{message.name}", inner)

    return {
        name: found
        for file in of.file
        for message in file.message_type
        for name, found in nested(file.package, message)
    }


def _enums(of: FileDescriptorSet) -> Mapping[str, EnumDescriptorProto]:
    inner = {f"{name}.{enum.name}": enum for name, message in _messages(of).items() for enum in message.enum_type}
    return inner | {f"{file.package}.{enum.name}": enum for file in of.file for enum in file.enum_type}


def _services(of: FileDescriptorSet) -> Mapping[str, ServiceDescriptorProto]:
    return {f"{file.package}.{service.name}": service for file in of.file for service in file.service}


def last_tag() -> str:
    """The last tag before the present commit; empty if there is none."""
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Compare the present files with those of the last tag."""
    if not (tag := last_tag()):
        return 0  # nothing was released
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", tag, "proto"], capture_output=True, check=True)
        subprocess.run(["tar", "--extract", "--directory", folder], input=archive.stdout, check=True)
        found = list(breaks(compiled(Path(folder, "proto")), compiled(ROOT / "proto")))
    print("\n".join(f"clients of {tag} would fail: {line}" for line in found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
