"""What ``celery_lowkiq`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import celery_lowkiq


def test_each_public_name_is_there():
    assert all(hasattr(celery_lowkiq, name) for name in celery_lowkiq.__all__)
    with pytest.raises(AttributeError, match="'celery_lowkiq' has no attribute 'Inspectr'"):
        _ = celery_lowkiq.Inspectr


def test_a_caller_does_not_import_the_inspector():
    code = "import sys, celery_lowkiq; sys.exit('celery_lowkiq.integration.inspector' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
