"""Play a script on real workers, and write down what happens."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redis import Redis

from tests.waiting import eventually
from tests.walkthrough import ordered, plain
from tests.walkthrough.recorder import MINUS, RECORD, URL, note, record_database
from tests.walkthrough.scripts import Script
from tests.walkthrough.sides import OrderedSide, PlainSide, Side, set_rates

ROOT = Path(__file__).parents[2]
#: Seconds between two looks at what lies in Redis.
LOOK = 0.015
#: Seconds of nothing after which a trace is at its end.
QUIET = 0.5
Event = dict[str, Any]


class Workers:
    """The worker processes of a side, by letter."""

    def __init__(self, side: Side, logs: Path) -> None:
        self._side = side
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: list[str] = []

    def start(self) -> None:
        for place, (letter, threads) in enumerate(self._side.workers.items()):
            words = ["worker", "-P", "threads", "-c", str(threads), *self._side.queues(place)]
            self.commands.append(f"celery -A {self._side.name} {' '.join(words)}")
            module = f"tests.walkthrough.{self._side.name}"
            command = [sys.executable, "-m", "celery", "-A", module, *words, "-n", f"{letter}@walkthrough"]
            environ = {**os.environ, "WALKTHROUGH_WORKER": letter}
            with (self._logs / f"{letter}.log").open("wb") as log:
                self._running[letter] = subprocess.Popen(
                    command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def kill(self) -> str:
        """Kill the one that began last."""
        last = [event for event in events() if event["e"] == "start"][-1]
        letter = str(last["lane"][0])
        process = self._running.pop(letter)
        process.send_signal(signal.SIGKILL)
        note("kill", worker=letter)
        process.wait()
        return f"kill -9 of worker {letter}"

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(30)


def events() -> list[Event]:
    """All that was written down."""
    return [json.loads(text) for text in record_database().lrange(RECORD, 0, -1)]


@contextlib.contextmanager
def watching(side: Side, looks: list[tuple[float, Any]]) -> Iterator[None]:
    """Look at what lies in Redis all the time."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(LOOK):
            found, now = side.look(), time.time()
            if found is not None and (not looks or found != looks[-1][1]):
                looks.append((now, found))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def play(script: Script, side: Side, workers: Workers) -> float:
    """Do what the script says, and wait for the end. Returns when it began (Unix s)."""
    moments: list[tuple[int, Any]] = [(call[0], call) for call in script.calls]
    moments += [(at, action) for at, action in script.actions]
    began = time.time()
    for at, what in sorted(moments, key=lambda moment: moment[0]):
        time.sleep(max(0.0, began + at / 1000 - time.time()))
        if what == "kill":
            workers.kill()
        elif what == "mend":
            set_rates(side.app, GBP=1.2)
            note("note", s=side.mend())
        elif what == "reshard":
            note("note", s=side.reshard())
        else:
            _, order, number, status = what
            note("call", id=order, v=number, s=status or _amount(script, number))
            side.call(order, {"version": number, **(script.amounts.get(number) or {"status": status})})
    eventually(lambda: side.is_done() and time.time() - events()[-1]["t"] > QUIET)
    return began


def warm_up(script: Script, side: Side) -> None:
    """Run each id once: what a process loads with its first run is no part of a trace."""
    orders = dict.fromkeys(call[1] for call in script.calls)
    for order in orders:
        side.call(order, {"version": 0, "status": "", "amount": 0, "currency": "EUR"})
    eventually(lambda: side.is_done() and sum(event["e"] == "end" for event in events()) == len(orders))
    record_database().delete(RECORD, "rows")


def _amount(script: Script, number: int) -> str:
    entry = script.amounts[number]
    return f"{entry['amount']:+d} {entry['currency']}".replace("-", MINUS)


def run_side(script: Script, side: Side) -> dict[str, Any]:
    """Record one side of a trace."""
    Redis.from_url(URL).flushall()
    set_rates(side.app, EUR=1.0)
    for key, runs in script.plan.items():
        record_database().rpush(f"plan/{key}", *map(json.dumps, runs))
    looks: list[tuple[float, Any]] = []
    with tempfile.TemporaryDirectory() as logs:
        workers = Workers(side, Path(logs))
        workers.start()
        try:
            eventually(side.is_ready)
            warm_up(script, side)
            with watching(side, looks):
                began = play(script, side, workers)
        finally:
            workers.stop()
    happened = told(script, began, events(), looks, side.name)
    lanes = [f"{letter}{n + 1}" for letter, count in side.workers.items() for n in range(count)]
    rows = record_database().hgetall("rows")
    return {"commands": workers.commands, "lanes": lanes, "rows": rows, "events": happened}


def told(script: Script, began: float, noted: list[Event], looks: list[Any], name: str) -> list[Event]:
    """All events in their order, with times in ms and short names of runs."""
    names: dict[str, int] = {}
    count = itertools.count(1)
    found: list[tuple[float, Event]] = []
    for event in noted:
        about = {key: value for key, value in event.items() if key != "t"}
        if "run" in about:
            key = about["run"]
            if about["e"] == "start":
                names[key] = next(count)
            about["run"] = names[key]
        found.append((event["t"], about))
    moments = sorted([*looks, *((event["t"], event) for event in noted)], key=lambda moment: moment[0])
    running: set[str] = set()
    look: Any = {} if name == "ordered" else []
    before: dict[str, Any] = {}
    for at, what in moments:
        if not isinstance(what, dict) or "e" not in what:
            look = what
        elif what["e"] == "start":
            running.add(what["run"])
        elif what["e"] == "end":
            running.discard(what["run"])
        elif what["e"] == "kill":
            running.clear()  # the only one that runs
        places = look if name == "ordered" else plain_places(look, running)
        for order in sorted({*before, *places}):
            if before.get(order) != places.get(order):
                place = dict(places.get(order, {}))
                if "due" in place:
                    place["due"] = round((place["due"] - began) * 1000)
                found.append((at, {"e": "redis", "id": order, **place}))
        before = places
    found.sort(key=lambda pair: pair[0])
    return [{"t": max(0, round((at - began) * 1000)), **about} for at, about in found]


def plain_places(look: list[tuple[str, int, str]], running: set[str]) -> dict[str, Any]:
    """The messages that do not run, by id."""
    places: dict[str, Any] = {}
    for order, number, task_id in look:
        if task_id not in running:
            places.setdefault(order, {"w": []})["w"].append(number)
    return places


def right_rows(script: Script) -> dict[str, str]:
    """What the rows must be at the end."""
    newest = {order: status for _, order, _, status in sorted(script.calls, key=lambda call: call[2])}
    return {**newest, **script.right}


def source(module: Any, name: str) -> str:
    """The source of a task."""
    return inspect.getsource(inspect.unwrap(getattr(module, name).run)).strip()


def record(script: Script, to: Path) -> None:
    """Record both sides of a trace."""
    sides = {side.name: run_side(script, side) for side in (PlainSide(script), OrderedSide(script))}
    code = {"plain": source(plain, script.task), "ordered": source(ordered, script.task)}
    info = Redis.from_url(URL).info("server")
    trace = {
        "name": script.name,
        "title": script.title,
        "story": script.story,
        "note": script.note,
        "noun": script.noun,
        "recorded": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "with": f"Celery {version('celery')}, Redis {info['redis_version']}, "
        f"Python {platform.python_version()}",
        "code": code,
        "right": right_rows(script),
        "sides": sides,
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(trace, ensure_ascii=False, separators=(",", ":")) + "\n")
    wrong = {
        name: {o: s for o, s in side["rows"].items() if s != trace["right"][o]}
        for name, side in sides.items()
    }
    print(f"{script.name}: {to.stat().st_size} bytes; wrong rows: {wrong}")
