"""Generate `skiway.model` from `proto/`: messages and their type stubs. With `--check`, only compare.

A `.proto` file can leave its spec, its service, and the requests and responses to this script: it writes them below the line
`REST`, from the message above it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "src" / "skiway" / "model"
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"

# directory of .proto files -> the import path of these files, which is also where protoc writes
SOURCES = {"flight": "skiway/model", "skiway/v1": "skiway/v1"}
# protoc's output for `skiway.v1` moves into `skiway.model`; names on the wire do not change.
MOVED = ("skiway/v1", "skiway/model/v1")

REST = "// The rest of this file is written by `make proto`.\n"
FIELD = re.compile(r"^  (?:optional |(repeated ))?([\w.]+|map<.+>) (\w+) = \d+;", re.MULTILINE)
OWN_FIELDS = ("resource_id", "created_at", "updated_at", "damage")
"""The fields that the server sets."""

SERVICE = """
message {T}Spec {{
{fields}}}

service {T}Service {{
  rpc List{S}(List{S}Request) returns (List{S}Response);
  rpc Get{T}(Get{T}Request) returns (Get{T}Response);
  rpc Create{T}(Create{T}Request) returns (Create{T}Response);
  rpc Update{T}(Update{T}Request) returns (Update{T}Response);
  rpc Delete{T}(Delete{T}Request) returns (Delete{T}Response);
}}

message List{S}Request {{
  PageRequest page = 1;
}}

message List{S}Response {{
  repeated {T} {s} = 1;
  PageResponse page = 2;
}}

// Set the id or the name.
message Get{T}Request {{
  ResourceId {t}_id = 1;
  string display_name = 2;
}}

message Get{T}Response {{
  {T} {t} = 1;
  MutationMeta meta = 2;
}}

message Create{T}Request {{
  {T}Spec spec = 1;
  IdempotencyKey idempotency = 2;
}}

message Create{T}Response {{
  {T} {t} = 1;
  MutationMeta meta = 2;
}}

// The mask can name the fields of the spec.
message Update{T}Request {{
  ResourceId {t}_id = 1;
  {T}Spec spec = 2;
  google.protobuf.FieldMask update_mask = 3;
  Precondition precondition = 4;
}}

message Update{T}Response {{
  {T} {t} = 1;
  MutationMeta meta = 2;
}}

message Delete{T}Request {{
  ResourceId {t}_id = 1;
  Precondition precondition = 2;
}}

message Delete{T}Response {{
  MutationMeta meta = 1;
}}
"""


def completed(text: str) -> str:
    """The text of a `.proto` file with the rest, if the file leaves that to this script."""
    written, line, _ = text.partition(REST)
    if not line:
        return text
    title = re.findall(r"^message (\w+)", written, re.MULTILINE)[-1]
    plural = f"{title[:-1]}ies" if title.endswith("y") else f"{title}s"
    own = [field.groups() for field in FIELD.finditer(written) if field[3] not in OWN_FIELDS]
    fields = "".join(
        f"  {'' if kind.startswith('map<') else many or 'optional '}{kind} {name} = {number};\n"
        for number, (many, kind, name) in enumerate(own, start=1)
    )
    return written + line + SERVICE.format(T=title, S=plural, t=title.lower(), s=plural.lower(), fields=fields)


def generate(out: Path) -> None:
    for folder, package in SOURCES.items():
        protos = sorted((ROOT / "proto" / folder).glob("*.proto"))
        arguments = [
            "protoc",
            f"-I{package}={ROOT / 'proto' / folder}",
            f"-I{WELL_KNOWN}",
            f"--python_out={out}",
            f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
            f"--mypy_out=quiet:{out}",
            f"--descriptor_set_out={out / folder.replace('/', '.')}.descriptors",
            *(f"{package}/{proto.name}" for proto in protos),
        ]
        if protoc.main(arguments) != 0:
            sys.exit(f"protoc failed for proto/{folder}")


def move(out: Path) -> None:
    """Move the package `skiway.v1` to `skiway.model.v1`, and write an `__init__.py` that exports all names."""
    source, target = (out / folder for folder in MOVED)
    target.mkdir()
    written, wanted = (f"from {folder.replace('/', '.')} import" for folder in MOVED)
    for file in source.iterdir():
        (target / file.name).write_text(file.read_text().replace(written, wanted))
    (target / "__init__.py").write_text(face(out / "skiway.v1.descriptors"))


def face(descriptors: Path) -> str:
    """The text of a module that imports every message, enum and enum value of the package."""
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    modules = {f"{Path(file.name).stem}_pb2": sorted(names(file), key=imported) for file in files}
    lines = ['"""Generated messages of `proto/skiway/v1`; `make proto` writes this folder."""', ""]
    for module, offered in sorted(modules.items()):
        lines += [f"from skiway.model.v1.{module} import (", *(f"    {name}," for name in offered), ")"]
    everything = sorted((name for offered in modules.values() for name in offered), key=constants_first)
    lines += ["", "__all__ = [", *(f'    "{name}",' for name in everything), "]"]
    return "\n".join(lines) + "\n"


def constants_first(name: str) -> tuple[bool, str]:
    return not name.isupper(), name


def imported(name: str) -> tuple[bool, str]:
    """The order of names in an import, as Ruff wants it: in any case."""
    return not name.isupper(), name.lower()


def names(file: FileDescriptorProto) -> Iterator[str]:
    yield from (message.name for message in file.message_type)
    for enum in file.enum_type:
        yield enum.name
        yield from (value.name for value in enum.value)


def made(out: Path) -> dict[str, bytes]:
    """The generated files, by their paths below `skiway/model`."""
    model = out / "skiway" / "model"
    return {str(file.relative_to(model)): file.read_bytes() for file in sorted(model.rglob("*.py*"))}


def main() -> None:
    texts = {proto: completed(proto.read_text()) for proto in (ROOT / "proto" / "skiway" / "v1").glob("*.proto")}
    incomplete = [proto for proto, text in texts.items() if proto.read_text() != text]
    if "--check" in sys.argv and incomplete:
        sys.exit(f"out of date: {', '.join(proto.name for proto in incomplete)}; run `make proto`")
    for proto in incomplete:
        proto.write_text(texts[proto])
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        generate(out)
        move(out)
        files = made(out)
    if "--check" in sys.argv:
        stale = [
            name
            for name, content in files.items()
            if not (MODEL / name).is_file() or (MODEL / name).read_bytes() != content
        ]
        # Generated files whose .proto no longer exists. The `__init__.py` of the package itself is written by hand.
        present = {str(file.relative_to(MODEL)) for file in MODEL.rglob("*.py*") if "__pycache__" not in file.parts}
        stale += sorted(present - files.keys() - {"__init__.py"})
        if stale:
            sys.exit(f"src/skiway/model is out of date: {', '.join(sorted(stale))}; run `make proto`")
        return
    for name, content in files.items():
        (MODEL / name).parent.mkdir(exist_ok=True)
        (MODEL / name).write_bytes(content)
    print(f"generated {len(files)} files into src/skiway/model")


if __name__ == "__main__":
    main()
