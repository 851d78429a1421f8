"""The app of `node.py` for a `celery worker`, which writes down what it has run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.fuzz.node import POLL, make_app


class Written(set):
    """Ids that have run, one in a line of a file, with the time."""

    def add(self, job_id):
        self.update([job_id])

    def update(self, ids):
        with Path(os.environ["FUZZ_RAN"]).open("a", errors="backslashreplace") as file:
            file.writelines(f"{time.time()} {job_id}\n" for job_id in ids)


app = make_app(os.environ["FUZZ_URL"])
app.ran = Written()
app.conf.update(lowkiq_poll_interval=POLL, broker_connection_retry_on_startup=True)
