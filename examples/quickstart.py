"""A plain task, made ordered by one line: it saves the changes of an order one after the other.

The worker alone, with a Redis on this machine:

    celery -A quickstart worker -P threads -c 8

Everything at once, on a private Redis unless QUICKSTART_BROKER names another:

    python quickstart.py
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("quickstart", broker="redis://localhost:6379/0")


@ordered_task(by="order_id", shards=24)  # was: @app.task
def save_order(order_id, status):
    save(order_id, status)


def save(order_id, status):
    """Write the status to a file of the order; nothing here locks or compares."""
    time.sleep(random.uniform(0.0, 0.05))  # a database is not always equally fast
    folder = Path(os.environ.get("QUICKSTART_ORDERS", "orders"))
    folder.mkdir(exist_ok=True)
    (folder / f"{order_id}.txt").write_text(status)
    print(f"order {order_id}: {status}")


# What follows only plays the side system that sends the messages, and starts what it needs.

#: As they arrive. Of a plain task, eight threads may save two changes of one order at once.
CHANGES = [
    (42, "new"),
    (7, "new"),
    (42, "reserved"),
    (42, "paid"),
    (99, "new"),
    (7, "paid"),
    (99, "cancelled"),
]
LATER = [(42, "shipped"), (7, "packed")]
PATIENCE = 60  # seconds


def main():
    with ExitStack() as stack:
        use_broker(os.environ.get("QUICKSTART_BROKER") or stack.enter_context(private_redis()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), "orders")
        os.environ["QUICKSTART_ORDERS"] = str(folder)
        print(f"{len(CHANGES)} changes arrive while no worker runs")
        call(CHANGES)
        with worker() as process:
            wait_until_done(process)
            print(f"{len(LATER)} more arrive while the worker runs")
            call(LATER)
            wait_until_done(process)
        print("saved at the end:")
        for file in sorted(folder.glob("*.txt"), key=lambda file: int(file.stem)):
            print(f"  order {file.stem}: {file.read_text()}")


def call(changes):
    for order_id, status in changes:
        save_order.delay(order_id, status=status)


@contextmanager
def private_redis():
    from celery_lowkiq.embedded import EmbeddedServer

    with EmbeddedServer() as server:
        yield server.url


def use_broker(url):
    # Celery reads these two before what is written in the app; the worker inherits them.
    os.environ["BROKER_URL"] = os.environ["CELERY_BROKER_URL"] = url


@contextmanager
def worker():
    options = ["-A", "quickstart", "worker", "-P", "threads", "-c", "8"]
    command = [sys.executable, "-m", "celery", "--quiet", *options]
    process = subprocess.Popen(command, cwd=Path(__file__).parent, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def wait_until_done(process):
    deadline = time.monotonic() + PATIENCE
    while (stats := save_order.ordered_queue.stats()).length + stats.busy > 0:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{stats.length + stats.busy} orders were not saved; see what the worker printed above")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
