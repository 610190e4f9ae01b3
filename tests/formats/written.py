"""The generator of fixtures, as a module: tables that other programs wrote."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_fixtures.py"


def _loaded() -> ModuleType:
    spec = spec_from_file_location("make_fixtures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_fixtures = _loaded()
