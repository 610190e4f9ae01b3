"""The settings that a command was started with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from skiway.config import Settings, load

__all__ = ["flags", "settings_of"]


def settings_of(home: Path, file: Path | None, given: Sequence[str]) -> Settings:
    """From `--set` and its like, the environment, the file and defaults."""
    return load(home, file, os.environ, flags(given))


def flags(given: Sequence[str]) -> Mapping[str, str]:
    """`KEY=VALUE` as pairs; the last one wins."""
    pairs = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(
                f"{text!r} is no KEY=VALUE: write it like gc.cas.enabled=false", param_hint="--set"
            )
        pairs[key.strip()] = value
    return pairs
