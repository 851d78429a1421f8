"""Python scripts in processes of their own, which find the package imported: half a second each."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: A process that has imported the package, and made nothing with it. It is forked for each script.
TEMPLATE = r"""
import gc, json, os, sys
import celery.app, celery.backends.redis, celery_lowkiq, kombu.transport.redis

gc.freeze()  # The end of a script would look through all of it.
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    os._exit(0)
os.environ.update(asked["env"])
for descriptor, path in enumerate((os.devnull, asked["out"], asked["err"])):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


def run_script(code: str, directory: Path, seconds: float = 60.0, **env: str) -> tuple[int, str, str]:
    """Run it with the variables, in addition to those of this process: its status, and what it wrote.

    The directory is for its output. A script that does not end within the time is an error.
    """
    template = _template()
    assert template.stdin is not None
    assert template.stdout is not None
    out, err = directory / "out", directory / "err"
    asked = {"code": code, "env": {**os.environ, **env}, "out": str(out), "err": str(err)}
    template.stdin.write(json.dumps(asked).encode() + b"\n")
    template.stdin.flush()
    ended, *_ = select.select([template.stdout], [], [], seconds)
    if not ended:
        _template.cache_clear()
        template.kill()
        raise TimeoutError(f"the script does not end within {seconds} s: {err.read_text()}")
    return int(template.stdout.readline()), out.read_text(), err.read_text()


@functools.cache
def _template() -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", TEMPLATE]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe)
    atexit.register(process.kill)
    return process
