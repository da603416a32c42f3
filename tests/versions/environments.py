"""Environments for the jobs: the wheel of this checkout, an unpacked PySpark, and a Python with the other packages."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "versions"

# The oldest releases with wheels for the Python, that this package (pyarrow 16, NumPy 1.26) and Spark admit.
OLDEST_PYARROW = {"4.0": 16, "4.1": 16, "4.2": 18, "4.3": 18}
OLDEST_PYARROW_OF_PYTHON = {"3.13": 18, "3.14": 22}
OLDEST_NUMPY = {"3.13": "2.1.0", "3.14": "2.3.2"}
OLDEST_PANDAS = {"3.13": "2.2.3", "3.14": "2.3.3"}


def build_wheel() -> Path:
    """Build the wheel of this checkout; return its path."""
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    pip(tools(), "wheel", "--no-deps", "--wheel-dir", str(BUILD / "wheel"), str(ROOT))
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    return wheel


def interpreter(python: str) -> str | None:
    """Return a Python of the PATH that starts: a pyenv shim may have none behind it."""
    path = shutil.which(f"python{python}")
    works = path is not None and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    return path if works else None


@contextlib.contextmanager
def process(
    command: list[str], environment: dict[str, str], folder: Path, out: IO[bytes], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a folder; afterwards kill it and its children."""
    running = subprocess.Popen(command, stdout=out, stderr=log, env=environment, cwd=folder, start_new_session=True)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def spark_home(spark: str) -> Path:
    """Unpack PySpark once, for all Pythons."""
    home = BUILD / f"pyspark-{spark}"
    if not (home / "pyspark").exists():
        pip(tools(), "install", "--no-deps", "--no-compile", "--target", str(home), f"pyspark=={spark}")
    return home


def packages(spark: str, python: str, *, oldest: bool) -> list[str]:
    """Return the requirements beside the wheel."""
    minor = spark.rsplit(".", 1)[0]
    always = ["crc32c", "lz4", "py4j<0.10.9.10,>=0.10.9.7"]
    if not oldest:
        # Spark 4.0 and 4.1 were released before pandas 3.
        return [*always, "pyarrow", "numpy", "pandas<3" if minor in ("4.0", "4.1") else "pandas"]
    pyarrow = max(OLDEST_PYARROW[minor], OLDEST_PYARROW_OF_PYTHON.get(python, 0))
    numpy = OLDEST_NUMPY.get(python, "1.26.0")
    return [*always, f"pyarrow=={pyarrow}.0.0", f"numpy=={numpy}", f"pandas=={OLDEST_PANDAS.get(python, '2.2.0')}"]


def extras(home: Path, names: Iterable[str]) -> list[str]:
    """Return the requirements of optional parts of PySpark."""
    (metadata,) = home.glob("pyspark-*.dist-info/METADATA")
    optional = re.findall(r'^Requires-Dist: (.+); extra == "(.+)"$', metadata.read_text(), re.MULTILINE)
    return sorted({requirement for requirement, name in optional if name in names})


def make_environment(
    folder: Path, interpreter: str, spark: Path, requirements: list[str], wheel: Path | None = None
) -> Path:
    """Make an environment with these packages and an unpacked PySpark, if it is not there; return its Python."""
    binary, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(requirements):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        pip(binary, "install", "--only-binary", ":all:", *requirements)
        (site,) = (folder / "lib").glob("python3*/site-packages")
        (site / "spark.pth").write_text(f"{spark}\n")
        stamp.write_text("\n".join(requirements))
    if wheel is not None:
        pip(binary, "install", "--force-reinstall", "--no-deps", str(wheel))
    return binary


def variables(binary: Path) -> dict[str, str]:
    """Return the environment variables for Spark with this Python, on the loopback address."""
    removed = ("PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR")
    return {
        **{name: value for name, value in os.environ.items() if name not in removed},
        "PYSPARK_PYTHON": str(binary),
        "PYSPARK_DRIVER_PYTHON": str(binary),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def versions(binary: Path) -> dict[str, str]:
    """Return the installed versions of the packages that the table names."""
    text = "import json, numpy, pandas, pyarrow; print(json.dumps([m.__version__ for m in (pyarrow, numpy, pandas)]))"
    out = subprocess.run([str(binary), "-c", text], check=True, capture_output=True, text=True).stdout
    return dict(zip(("pyarrow", "numpy", "pandas"), json.loads(out), strict=True))


def tools() -> Path:
    """Return a Python with pip: an environment that uv has made has none."""
    binary = BUILD / "tools" / "bin" / "python"
    if not binary.exists():
        subprocess.run([sys.executable, "-m", "venv", str(BUILD / "tools")], check=True)
    return binary


def pip(python: Path, *arguments: str) -> None:
    """Run pip, quietly."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)
