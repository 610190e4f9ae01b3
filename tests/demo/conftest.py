from __future__ import annotations

from pathlib import Path

import pytest

from demo.demos import made_home


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home with a complete demo, and the output of its first start."""
    return made_home(tmp_path_factory)


@pytest.fixture
def home(made: tuple[Path, str]) -> Path:
    """A home with a complete demo."""
    return made[0]
