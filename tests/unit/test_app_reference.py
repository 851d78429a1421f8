"""The app of another process: found by name, as ``celery -A`` finds it."""

from __future__ import annotations

import subprocess
import sys

SAYS_NAME = """
import sys
from celery_lowkiq.integration.processes.app_reference import import_app
sys.path[:] = [path for path in sys.path if path not in ("", {folder!r})]
print(import_app("shop_in_folder:app").main)
"""


def test_an_app_in_the_current_folder_is_found(tmp_path):
    """The command ``celery`` has the folder in sys.path only while it imports the app."""
    (tmp_path / "shop_in_folder.py").write_text("from celery import Celery\napp = Celery('shop')\n")
    code = SAYS_NAME.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("shop\n", "")
