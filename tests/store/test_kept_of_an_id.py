"""Each step of a job's life deals with all that is kept of an id, or says why it does not."""

from __future__ import annotations

import re

import pytest

from celery_lowkiq.store.keys import ID_KEYS, MORGUE_KEYS, WAITING_KEYS
from celery_lowkiq.store.script import load

#: Scripts that are bound to waiting or to dead jobs.
BOUND_TWICE = {"dump", "repair_payload_sets"}
STEPS = {
    "claim": ("claim",),
    "settle": ("settle",),
    "delete": ("delete", "delete_dead"),
    "dump": ("dump",),
    "load": ("load",),
    "repair": (
        "repair_payload_sets",
        "repair_waiting",
        "repair_processing",
        "repair_morgue",
        "largest_numbers",
    ),
    "why": ("why",),
}
MORGUE = "dead dead_ids dead_jobs dead_spill dead_spill_order dead_errors"
PAYLOADS = "jobs spill spill_order dead_jobs dead_spill dead_spill_order"
#: Keys that a step leaves alone, and why that is right.
LEFT_ALONE = {
    "claim": {
        "tries": "the log goes on while the job runs",
        MORGUE: "a claim takes waiting jobs only",
    },
    "settle": {},
    "delete": {
        "calls": "Actions ends the calls of the orphans that the script returns",
        "done_scores buckets": "they are of the id, not of a job, and expire",
        "claimed": "what is in processing goes on",
    },
    "dump": {
        "calls claimed processing": "dump_entries reads them itself",
        "debounce early_due done_scores buckets tries crash_marks": "a dump has what is to run, no history",
        "dead_ids": "dump_entries lists the morgue by it",
    },
    "load": {
        "done_scores buckets tries crash_marks": "a dump does not have them",
        "claimed processing": "what was in processing is loaded as waiting",
    },
    "repair": {
        "debounce early_due buckets": "without its entry a job is due at its own time, and a bucket is full",
    },
    "why": {
        PAYLOADS: "the answer is about time, not content",
        "calls debounce early_due": "perform_in has their result",
        "done_scores": "it drops payloads, and delays no job",
        "processing": "claimed says that the id is in processing",
        "tries": "Tries reads them beside it",
        "dead_ids": "dead says that the id is dead",
    },
}


def named(name):
    """Keys that the code of a script and its libraries uses."""
    script = load(name)
    code = re.sub(r"--[^\n]*", "", script.body).partition("local rest")[2]
    code = re.sub(r"(?m)^redis\.call\('\w+', \w+\)\n", "", code)
    found = {key for key in script.keys if re.search(rf"\b{key}\b", code)}
    if name in BOUND_TWICE:
        found = {names.get(key, key) for key in found for names in (WAITING_KEYS, MORGUE_KEYS)}
    return found


@pytest.mark.parametrize("step", STEPS)
def test_a_step_names_all_that_is_kept_of_an_id(step):
    used = set().union(*map(named, STEPS[step]))
    exempt = {key for keys in LEFT_ALONE[step] for key in keys.split()}
    assert ID_KEYS - used == exempt
