"""Searches the sources for secrets, and the installed packages for known vulnerabilities: ``nox -s audit``.

A finding is an error. Checks that the network or a part of the index makes impossible are named.
``python -m tests.audit --accept`` writes the found secrets, which are examples, into ``.secrets.baseline``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / ".secrets.baseline"
#: Texts of chance, and names that ruff's S rules look at.
LEFT_OUT = ("Base64HighEntropyString", "HexHighEntropyString", "KeywordDetector")
SECONDS = 60


def found_secrets() -> set[tuple[str, str, str]]:
    """File, kind and hash of each secret in a file of git."""
    words = ["detect-secrets", "scan", "--no-verify", "--exclude-files", r"\.(svg|png|baseline)$"]
    words += [word for name in LEFT_OUT for word in ("--disable-plugin", name)]
    scanned = subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    results: dict[str, list[dict[str, Any]]] = json.loads(scanned.stdout)["results"]
    return {(name, one["type"], one["hashed_secret"]) for name, all_of in results.items() for one in all_of}


def known_secrets() -> set[tuple[str, str, str]]:
    """Those that somebody has looked at."""
    return {tuple(one) for one in json.loads(BASELINE.read_text())} if BASELINE.exists() else set()


def vulnerabilities() -> tuple[list[str], str]:
    """Known vulnerabilities of installed packages, and what was not asked."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["pip-audit", "--skip-editable", "--timeout", "10", "-f", "json", "-o", str(report)]
        try:
            ended = subprocess.run(words, timeout=SECONDS, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return [], f"pip-audit had no answer within {SECONDS} s"
        if not report.exists():
            return [], f"pip-audit had no answer: {ended.stderr.strip()[-300:]}"
        packages = json.loads(report.read_text())["dependencies"]
    found = [
        f"{one['name']} {one['version']}: {', '.join(each['id'] for each in one['vulns'])}"
        for one in packages
        if one.get("vulns")
    ]
    skipped = sum("skip_reason" in one for one in packages)
    return found, f"{skipped} of {len(packages)} packages are not in the index" if skipped else ""


def main() -> int:
    """Exit status 1 for a finding."""
    secrets = found_secrets()
    if "--accept" in sys.argv:
        BASELINE.write_text(json.dumps(sorted(secrets), indent=1) + "\n")
        return 0
    new = sorted(secrets - known_secrets())
    for name, kind, _ in new:
        print(f"{name}: {kind}. Remove it; an example goes into .secrets.baseline by --accept")
    vulnerable, unknown = vulnerabilities()
    for line in vulnerable:
        print(line)
    if unknown:
        print(f"skipped: {unknown}")
    print(f"{len(new)} secrets, {len(vulnerable)} packages with known vulnerabilities")
    return int(bool(new or vulnerable))


if __name__ == "__main__":
    sys.exit(main())
