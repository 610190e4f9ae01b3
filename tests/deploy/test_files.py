"""The deployment files use settings, commands and paths that exist. `make lint-deploy` checks them with their own tools."""

from __future__ import annotations

import configparser
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from skiway.cli.app import SERVER
from skiway.config import load, shown
from skiway.runtime.lake import warehouse_of

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def as_setting(variable: str) -> str:
    return variable.removeprefix("SKIWAY__").lower().replace("__", ".")


def test_environment_variables_are_settings() -> None:
    named = {name for path in FILES for name in re.findall(r"SKIWAY__[A-Z0-9_]*[A-Z0-9]", path.read_text())}
    assert len(named) > 10
    assert {as_setting(name) for name in named} - shown(load(Path("home"))).keys() == set()


def test_servers_of_compose_start_with_valid_settings(tmp_path: Path) -> None:
    services = compose()["services"]
    for name in ("server-1", "server-2", "worker"):
        flags = {
            as_setting(variable): re.sub(r"\$\{.*\}", "secret", str(value))
            for variable, value in services[name]["environment"].items()
        }
        settings = load(tmp_path, flags=flags | {"auth.mode": "token"})
        assert settings.reconciler.backend == "remote"
        assert (settings.kv.url or "").startswith("postgresql://")
    assert services["server-1"]["environment"] == services["worker"]["environment"]


def test_settings_of_the_chart_are_valid(tmp_path: Path) -> None:
    values = yaml.safe_load((DEPLOY / "helm" / "skiway" / "values.yaml").read_text())
    file = tmp_path / "skiway.toml"
    file.write_text(values["settings"])
    assert tomllib.loads(values["settings"])["auth"]["mode"] == "token"
    assert load(tmp_path, file=file).auth.mode == "token"


def test_settings_in_the_documentation_are_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", (PROJECT / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "skiway.toml"
    found = []
    for block in blocks:
        file.write_text(block)
        key = {"storage.azure.account_key": "a2V5"} if "azure" in block else {}
        found.append(load(tmp_path, file=file, flags=key))
    minio, gcs, azure = found
    assert minio.storage.aws.s3.endpoint == "http://minio:9000"
    assert gcs.warehouse.uri == "gs://lake/warehouse"
    assert azure.storage.azure.account_name == "myaccount"
    assert all(warehouse_of(each).root.path == "warehouse" for each in (minio, gcs, azure))


def test_commands_exist() -> None:
    used = [*compose()["services"]["worker"]["command"][:1]]
    for unit in (DEPLOY / "systemd").iterdir():
        parsed = configparser.RawConfigParser(strict=False)
        parsed.optionxform = str  # type: ignore[assignment,method-assign]
        parsed.read_string(unit.read_text())
        used.append(parsed["Service"]["ExecStart"].split()[1])
    for template in ("server", "worker"):
        text = (DEPLOY / "helm" / "skiway" / "templates" / f"{template}.yaml").read_text()
        used += re.findall(r"args: \[(\w+)", text)
    used += re.findall(r'CMD \["(\w+)", "--home"', (DEPLOY / "Dockerfile").read_text())
    assert set(used) == {"serve", "worker"}
    assert set(used) <= SERVER.keys()


def test_home_in_a_volume_of_the_chart_is_closed_to_others(tmp_path: Path) -> None:
    """Kubernetes gives the volume to root, and to the group of the pod; the server accepts only a home of its own user."""
    (command,) = re.findall(
        r'command: \[sh, -c, "(.*)"\]', (DEPLOY / "helm" / "skiway" / "templates" / "_helpers.tpl").read_text()
    )
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2770)
    for _ in range(2):
        subprocess.run(["sh", "-c", command.replace("/var/lib/skiway", str(volume))], check=True)
        assert (volume / "home").stat().st_mode & 0o077 == 0
        assert (volume / "home" / "tokens.toml").read_text() == ""
    settings = load(volume / "home", flags={"auth.mode": "token"})
    assert settings.auth.tokens.file == volume / "home" / "tokens.toml"


def test_image_has_what_the_build_copies() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    allowed = set(re.findall(r"^!(\S+)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE))
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE) for name in line.split()
    }
    assert copied == allowed
    assert all((PROJECT / name).exists() for name in copied)
    assert re.search(r"^USER 10001$", dockerfile, re.MULTILINE)
