"""Imports a file of 10,000 products: each row is a job, and the sender can watch the progress.

The worker alone, with a Redis on this machine:

    celery -A csv_import worker -P threads -c 8

Everything at once, on a private Redis unless CSV_IMPORT_BROKER names another; the dashboard shows the import
while it runs (its address is printed), and the rows that were not taken are written down with the reason:

    python csv_import.py [--rows 10000] [--keep]
"""

from __future__ import annotations

import argparse
import csv
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from celery import Celery

from celery_lowkiq import BusinessFailure, ordered_task, track

app = Celery("csv_import", broker="redis://localhost:6379/0")


@ordered_task(shards=24, bind=True, max_retries=0)
def import_product(self, payloads_by_id):
    for sku, rows in payloads_by_id.items():  # rows of one product: as they stand in the file
        for number, row in enumerate(rows, start=1):
            save(sku, row["name"], price_of(row))
            self.progress(current=number, total=len(rows))


def price_of(row):
    price = float(row["price"])  # other text is an error: a person has to look at the file
    if price <= 0:
        raise BusinessFailure(f"a price of {price:g} is not allowed")
    return price


def save(sku, name, price):
    with products() as database:
        database.execute("INSERT OR REPLACE INTO products VALUES (?, ?, ?)", (sku, name, price))


@contextmanager
def products():
    database = sqlite3.connect(os.environ.get("CSV_IMPORT_DATABASE", "products.db"), timeout=60)
    try:
        with database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("CREATE TABLE IF NOT EXISTS products (sku TEXT PRIMARY KEY, name, price)")
            yield database
    finally:
        database.close()


def import_file(path):
    """What the web application does with a file. The browser needs only the id of the group."""
    with track(f"import {path.name}", app) as tracker, path.open(newline="") as file:
        rows = csv.DictReader(file)
        import_product.perform_async(({"id": row["sku"], "payload": row} for row in rows), tracker=tracker)
    return tracker


# What follows only makes the file, and starts what the example needs.

PATIENCE = 300  # seconds


def main():
    options = arguments()
    with ExitStack() as stack:
        use_broker(os.environ.get("CSV_IMPORT_BROKER") or stack.enter_context(private_redis()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["CSV_IMPORT_DATABASE"] = str(folder / "products.db")
        tracker = import_file(make_file(folder / "products.csv", options.rows))
        address = stack.enter_context(dashboard())
        print(f"watch it: {address}/tracker?id={tracker.id}", flush=True)
        process = stack.enter_context(worker())
        while not tracker.wait(1):
            counts = tracker.counts()
            print(f"{counts.ended} of {counts.total} rows, {counts.failed} refused, {counts.error} in error")
            if process.poll() is not None:
                sys.exit("the worker has ended; see what it printed above")
        report(tracker, Path("refused.csv"))
        if options.keep:
            input("Enter ends the example, and the dashboard with it. ")


def report(tracker, path):
    """The refused rows, for the sender of the file."""
    with products() as database:
        (saved,) = database.execute("SELECT count(*) FROM products").fetchone()
    counts, after = tracker.counts(), None
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sku", "state", "reason"])
        while True:
            page = tracker.jobs(["failed", "error"], limit=1000, after=after)
            writer.writerows([c.id, c.state.value, c.messages[-1].text] for c in page.items)
            after = page.next
            if after is None:
                break
    print(f"{saved} products saved; {counts.failed} rows refused, {counts.error} in error: see {path}")


def make_file(path, rows):
    """Each 50th price is not allowed, and each 200th is no number."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sku", "name", "price"])
        for n in range(1, rows + 1):
            price = "call us" if n % 200 == 0 else -1 if n % 50 == 0 else n / 100
            writer.writerow([f"sku-{n}", f"product {n}", price])
    return path


def arguments():
    parser = argparse.ArgumentParser(description="Import a CSV file of products, and watch it.")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--keep", action="store_true", help="keep the dashboard open at the end")
    return parser.parse_args()


@contextmanager
def private_redis():
    from celery_lowkiq.embedded import EmbeddedServer

    with EmbeddedServer() as server:
        yield server.url


def use_broker(url):
    # Celery reads these two before what is written in the app; the worker inherits them.
    os.environ["BROKER_URL"] = os.environ["CELERY_BROKER_URL"] = url


@contextmanager
def dashboard():
    """The server's address on this machine, at any free port."""
    import uvicorn

    from celery_lowkiq.web import make_app

    server = uvicorn.Server(uvicorn.Config(make_app(app), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            sys.exit("the dashboard did not start; see what it printed above")
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@contextmanager
def worker():
    options = ["-A", "csv_import", "worker", "-P", "threads", "-c", "8"]
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


if __name__ == "__main__":
    main()
