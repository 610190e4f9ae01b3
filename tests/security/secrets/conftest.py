from __future__ import annotations

from collections.abc import Iterator

import botocore.session
import pytest
from botocore.loaders import create_loader


@pytest.fixture(scope="session", autouse=True)
def shared_loader() -> Iterator[None]:
    """Let all sessions of botocore share one loader, so that they parse the descriptions of AWS only once."""
    loader = create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", lambda *_: loader)
        yield
