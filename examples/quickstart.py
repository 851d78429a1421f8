"""Saves changes of orders in order, however close together they arrive.

The worker alone, with a Redis on this machine:

    celery -A quickstart worker -P threads -c 8

Everything at once, on a private Redis unless QUICKSTART_BROKER names another:

    python quickstart.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("quickstart", broker="redis://localhost:6379/0")


@ordered_task(shards=24)
def sync_order(payloads_by_id):
    for order_id, payloads in payloads_by_id.items():  # payloads: smallest score first
        save(order_id, payloads[-1])


def save(order_id, order):
    """Write the order to a file of its own; nothing here locks or compares versions."""
    folder = Path(os.environ.get("QUICKSTART_ORDERS", "orders"))
    folder.mkdir(exist_ok=True)
    (folder / f"{order_id}.json").write_text(json.dumps(order))
    print(f"order {order_id}: {order['status']}, version {order['version']}")


# What follows only plays the side system that sends the messages, and starts what it needs.

#: As they arrive: (order, version, status). The network brought some of them in the wrong order.
CHANGES = [
    ("42", 3, "paid"),
    ("7", 1, "new"),
    ("42", 1, "new"),
    ("42", 2, "reserved"),
    ("99", 2, "cancelled"),
    ("7", 2, "paid"),
    ("99", 1, "new"),
]
LATER = [("42", 4, "shipped"), ("7", 3, "packed")]
PATIENCE = 60  # seconds


def main():
    with ExitStack() as stack:
        use_broker(os.environ.get("QUICKSTART_BROKER") or stack.enter_context(private_redis()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), "orders")
        os.environ["QUICKSTART_ORDERS"] = str(folder)
        print(f"{len(CHANGES)} changes arrive while no worker runs; the score says which is newer")
        sync_order.perform_async([message(*change) for change in CHANGES])
        with worker() as process:
            wait_until_done(process)
            print(f"{len(LATER)} more arrive while the worker runs")
            sync_order.perform_async([message(*change) for change in LATER])
            wait_until_done(process)
        print("saved at the end:")
        for file in sorted(folder.glob("*.json"), key=lambda file: int(file.stem)):
            print(f"  order {file.stem}: {file.read_text()}")


def message(order_id, version, status):
    return {"id": order_id, "score": version, "payload": {"status": status, "version": version}}


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
    while (stats := sync_order.ordered_queue.stats()).length + stats.busy > 0:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{stats.length + stats.busy} orders were not saved; see what the worker printed above")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
