"""What a scene shows: replies of the API, of the command line and of remote control, metrics, events."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.request import urlopen

from celery.bin.celery import celery
from celery.worker.control import Panel
from click.testing import CliRunner

import celery_lowkiq
from tests.golden.files import CHANGING, settled, written
from tests.golden.scene import FAR, NODE, Scene
from tests.worker.scraping import metrics_url

#: What differs from run to run in texts of the scene, beside what does everywhere.
OF_SCENE = [
    *CHANGING,
    (r'File "[^"]*", line \d+', 'File "<file>", line <n>'),
    (r"\b(Redis|Valkey) \d[\d.]*", "<server>"),
    (r"/\S+/redis\.sock", "<socket>"),
    (rf"{NODE}-\w+", f"{NODE}-<random>"),
    (r"\bfor [\d.]+ (d|h|min|s)\b", "for <span>"),
    (r"differ by [\d.]+ s", "differ by <span>"),
    (r"kill -TTIN \d+", "kill -TTIN <pid>"),
    (r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{32}\b(?!-)", "<random>"),
    (rf"\b{re.escape(celery_lowkiq.__version__)}\b", "<version>"),
]
#: Characters of the id of a change, which is random.
ID_OF_OPERATION = 16
#: A greater number is a time of today (s).
LONG_AGO = 1e9
#: Fields whose numbers differ from run to run.
NUMBERS = {
    "ahead",
    "epoch",
    "fragmentation",
    "give_or_take",
    "held_for",
    "lag",
    "leaving_bytes",
    "oldest",
    "oldest_call",
    "pid",
    "seconds",
    "silent",
    "used_memory",
}
#: What depends on how long the worker runs.
LATER = {"jobs_per_minute", "load", "rates"}
#: Records that say something of the machine: all that is kept are their fields.
FIELDS_ONLY = {"server", "samples"}


def settled_json(value: Any, name: str = "") -> Any:
    """JSON without what differs from run to run."""
    if name in LATER:
        return f"<{name}>"
    if isinstance(value, dict):
        if name in FIELDS_ONLY:
            return dict.fromkeys(value, f"<{name}>")
        return {settled(key, OF_SCENE): settled_json(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [settled_json(one, name) for one in (value[:1] if name in FIELDS_ONLY else value)]
    if isinstance(value, str):
        return "<random>" if name == "id" and len(value) == ID_OF_OPERATION else settled(value, OF_SCENE)
    if isinstance(value, bool) or value in (FAR, None):
        return value
    return "<time>" if value > LONG_AGO else "<number>" if name in NUMBERS else value


# -- the JSON API


def api(scene: Scene) -> str:
    """The reply to each GET, and to a change with what shows it."""
    paths = [
        "/stats",
        "/queues",
        "/jobs?queue=mail",
        "/jobs?queue=held",
        "/retries?queue=failing",
        "/morgue?queue=mail",
        "/processing?queue=slow",
        "/job?queue=held&id=h",
        "/job?queue=failing&id=f",
        "/job?queue=slow&id=r",
        "/job?queue=mail&id=nobody",
        "/shards?queue=slow",
        "/migration?queue=mail",
        "/migration?queue=moved",
        "/reshard_cost?queue=mail&shards=3",
        "/paused_ids?queue=mail",
        "/held_ids?queue=held",
        "/failures?queue=mail",
        "/matches?queue=failing&list=retries",
        "/history?queue=mail",
        "/nodes",
        "/redis",
        "/masters",
        "/doctor",
        "/audit",
        "/operations",
        "/trackers",
        f"/trackers/{scene.tracker.id}",
        f"/trackers/{scene.tracker.id}/calls",
        "/jobs",
        "/jobs?queue=nothing",
        "/matches?queue=mail",
        "/operations/nothing",
    ]
    found = []
    for path in paths:
        answer = scene.browser.get(f"/api/v1{path}")
        record = answer.json()
        if path == "/redis":
            record = dict.fromkeys(record, "<server>")
        shown = settled(path, OF_SCENE)
        found.append(f"GET {shown}\n{answer.status_code} {written(settled_json(record))}\n")
    return "\n".join(found)


def openapi(scene: Scene) -> str:
    """The description of the API."""
    record = scene.browser.get("/api/v1/openapi.json").json()
    record["info"]["version"] = "<version>"
    return written(record) + "\n"


# -- the command line


def command_line(scene: Scene) -> str:
    """``--json`` of each command that has it."""
    commands = [
        "stats --json",
        "stats mail --json",
        "stats slow --shards --json",
        "jobs mail --json",
        "jobs failing --by retry_count --json",
        "job held h --json",
        "job slow r --json",
        "why failing f --json",
        "why slow s --json",
        "morgue mail --json",
        "paused mail --json",
        "held held --json",
        "failures --json",
        "failures mail --json",
        "nodes --json",
        "masters --json",
        "doctor --json",
        "audit --json",
        "progress --json",
        f"progress {scene.tracker.id} --json",
        f"progress {scene.tracker.id} --state enqueued --json",
        "dump mail",
    ]
    found = []
    for words in commands:
        done = CliRunner().invoke(
            celery, ["-A", "tests.golden.shop", "lowkiq", *words.split()], prog_name="celery"
        )
        lines = [written(settled_json(json.loads(line))) for line in done.stdout.splitlines()]
        shown = settled(words, OF_SCENE)
        found.append("\n".join([f"$ celery lowkiq {shown}", *lines, f"status {done.exit_code}\n"]))
    return "\n".join(found)


# -- remote control


def remote_control(scene: Scene) -> str:
    """The commands as Celery lists them, and a worker's reply to each."""
    found = [
        f"celery {info.type} {name} {info.signature or ''}".rstrip() + f"\n    {info.help}\n"
        for name, info in sorted(Panel.meta.items())
        if name.startswith("lowkiq")
    ]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("lowkiq", {}),
        ("lowkiq_migration", {"queue": "mail"}),
        ("lowkiq_migration", {"queue": "moved"}),
        ("lowkiq_pause_migration", {"queue": "moved"}),
        ("lowkiq_resume_migration", {"queue": "mail"}),
        ("lowkiq_abort_migration", {"queue": "mail"}),
        ("lowkiq_reshard", {"queue": "mail", "shards": 0}),
        ("lowkiq_pause", {"queue": "mail"}),
        ("lowkiq_pause", {"queue": "mail", "ids": ["w", "p"]}),
        ("lowkiq_resume", {"queue": "mail", "ids": ["w"]}),
        ("lowkiq_requeue", {"queue": "mail", "ids": ["nobody"]}),
        ("lowkiq_requeue", {"queue": "mail"}),
        ("lowkiq_run_now", {"queue": "mail", "ids": ["w"]}),
        ("lowkiq_resume", {"queue": "nothing"}),
        ("lowkiq_requeue", {"queue": "mail", "ids": "w"}),
        ("lowkiq_quiet", {}),
        ("lowkiq_unquiet", {}),
    ]
    for name, arguments in asked:
        ((reply,),) = (
            answer.values()
            for answer in scene.app.control.broadcast(name, arguments, reply=True, limit=1, timeout=60)
        )
        found.append(f"> {name} {json.dumps(arguments)}\n{written(settled_json(reply))}\n")
    return "\n".join(found)


# -- metrics and events


def metrics(scene: Scene) -> str:
    """Each metric of a worker: its type, its help, its samples with their labels, its buckets."""
    with urlopen(metrics_url(scene.node), timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    found: dict[str, None] = {}
    for line in lines:
        if line.startswith("#"):
            found[line] = None
        elif sample := re.match(r"(\w+)(\{.*\})? ", line):
            labels = re.findall(r'(\w+)="([^"]*)"', sample[2] or "")
            names = [f"le={value}" if name == "le" else name for name, value in labels]
            found[f"{sample[1]}{{{', '.join(names)}}}"] = None
    ours = (line for line in found if re.match(r"(# \w+ )?lowkiq_", line) and "_created" not in line)
    return "".join(f"{line}\n" for line in ours)


def events(scene: Scene) -> str:
    """The fields of each event; also the values of the package's own."""
    found = {}
    for event in scene.listener.events:
        kind = event["type"]
        if kind.startswith("task-"):
            found[kind] = ", ".join(sorted(event))
        elif kind.startswith("lowkiq-"):
            times = dict.fromkeys(("clock", "timestamp", "local_received"), "<time>")
            found[kind] = written(settled_json({**event, **times}))
    return "".join(f"{kind}\n{fields}\n\n" for kind, fields in sorted(found.items()))


#: What is read of the scene, by the name of its file; the last one changes it.
SEEN = {
    "api.txt": api,
    "openapi.json": openapi,
    "command_line.txt": command_line,
    "metrics.txt": metrics,
    "events.txt": events,
    "remote_control.txt": remote_control,
}
