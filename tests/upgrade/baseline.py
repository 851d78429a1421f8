"""The wheel of the baseline release, built from its commit."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The commit whose release a rolling deploy must be able to start from. Replaced only by a later release.
BASELINE = "26c9c24f86d9f6ba61169b3ea05df5ecaf243ba5"


class NoHistory(Exception):
    """The checkout does not have the commit of the baseline."""


def unpack_baseline(directory: Path) -> Path:
    """Build the wheel, and unpack it. Returns the folder to put on PYTHONPATH. Raises NoHistory."""
    source, wheels, site = directory / "source", directory / "wheels", directory / "site"
    command = ["git", "-C", str(ROOT), "archive", BASELINE]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        raise NoHistory(archive.stderr.decode(errors="replace").strip())
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(source, filter="data")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)  # noqa: S202 - of our own history
    return site
