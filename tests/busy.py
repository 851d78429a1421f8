"""Computing processes beside a command, to find races: ``python -m tests.busy 2 pytest tests/worker``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

#: Ends with its parent, also when that is killed.
COMPUTE = "import os\nwhile os.getppid() == {parent}:\n    for _ in range(10**6): pass"


@contextlib.contextmanager
def computing(count: int) -> Iterator[None]:
    """Keep ``count`` processes computing within the block."""
    words = [sys.executable, "-c", COMPUTE.format(parent=os.getpid())]
    processes = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    with computing(int(sys.argv[1])):
        sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)
