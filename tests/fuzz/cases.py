"""Cases as JSON, and the corpus: the cases that once were faults, which the tests repeat."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.target import Case

CORPUS = Path(__file__).with_name("corpus")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: its target, the cases that lead to it, and how it showed. `signature` tells faults apart."""

    target: str
    signature: str
    cases: list[Case]
    detail: str = ""

    @property
    def file_name(self) -> str:
        readable = re.sub(r"[^a-z0-9]+", "-", self.signature.lower()).strip("-")[:70].rstrip("-")
        return f"{self.target}-{readable}.json"

    def save(self, folder: Path) -> Path:
        """Write the finding to a file, which the corpus can adopt as it is."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {"target": self.target, "fault": self.signature, "cases": to_json(self.cases)}
        path = folder / self.file_name
        path.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Finding:
        content = json.loads(path.read_text())
        return cls(content["target"], content["fault"], from_json(content["cases"]))


def corpus(folder: Path = CORPUS) -> list[Path]:
    """The files of all findings in the corpus."""
    return sorted(folder.glob("*.json"))


def to_json(value: Any) -> Any:
    """The value with bytes as `{"b64": text}`."""
    match value:
        case dict():
            return {name: to_json(part) for name, part in value.items()}
        case list() | tuple():
            return [to_json(part) for part in value]
        case bytes():
            return {"b64": base64.b64encode(value).decode()}
    return value


def from_json(value: Any) -> Any:
    match value:
        case {"b64": str(text), **rest} if not rest:
            return base64.b64decode(text)
        case dict():
            return {name: from_json(part) for name, part in value.items()}
        case list():
            return [from_json(part) for part in value]
    return value
