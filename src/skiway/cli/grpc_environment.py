"""What gRPC reads from the environment when it is loaded, so it has to be there before."""

from __future__ import annotations

import os

__all__ = ["prepare_grpc"]


def prepare_grpc() -> None:
    """Let it write nothing, as what fails is told by us; and let it alone a fork, by which Java is started."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
