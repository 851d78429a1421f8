"""The package of the release from which a rolling deploy starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "celery_lowkiq"
#: A Git revision of this repository, or a folder that has the package. Without it, the release is a copy of
#: this checkout.
FROM = os.environ.get("LOWKIQ_UPGRADE_FROM", "")


def unpack(directory: Path) -> Path:
    """Write the package of the other release into ``directory``. Returns the folder for PYTHONPATH."""
    if not FROM or Path(FROM, PACKAGE).is_dir():
        shutil.copytree(Path(FROM or ROOT, PACKAGE), directory / PACKAGE)
        return directory
    command = ["git", "-C", str(ROOT), "archive", FROM, PACKAGE]
    archive = subprocess.run(command, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory
