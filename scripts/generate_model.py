"""Generate `skiway.model` from `proto/`: messages and their types. `--check` only compares."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "src" / "skiway" / "model"

# folder of .proto files -> the Python package they become; the import path inside protos is the package's
SOURCES = {"flight": "skiway/model"}


def generate(out: Path) -> None:
    for folder, package in SOURCES.items():
        protos = sorted((ROOT / "proto" / folder).glob("*.proto"))
        arguments = [
            "protoc",
            f"-I{package}={ROOT / 'proto' / folder}",
            f"--python_out={out}",
            f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
            f"--mypy_out=quiet:{out}",
            *(f"{package}/{proto.name}" for proto in protos),
        ]
        if protoc.main(arguments) != 0:
            sys.exit(f"protoc failed for proto/{folder}")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        generate(out)
        made = {p.name: p.read_bytes() for p in (out / "skiway" / "model").iterdir()}
    if "--check" in sys.argv:
        stale = [
            name
            for name, content in made.items()
            if not (MODEL / name).is_file() or (MODEL / name).read_bytes() != content
        ]
        if stale:
            sys.exit(f"src/skiway/model is not what proto/ says: {', '.join(sorted(stale))}; run `make proto`")
        return
    for name, content in made.items():
        (MODEL / name).write_bytes(content)
    print(f"generated {len(made)} files into src/skiway/model")


if __name__ == "__main__":
    main()
