"""Failures of a settle, counted in the groups of their fingerprints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from celery_lowkiq.rules.models import Failure
from celery_lowkiq.store.scripts.keys import failure_ranks_key, failures_key
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

#: Maximum number of groups of a queue, and of one settle.
MAX_GROUPS = 200


def record_call(queue: str, failures: Sequence[Failure]) -> ScriptCall:
    """Return the script call that counts failures in their groups."""
    counts = Counter(failure.fingerprint for failure in failures)
    about = {failure.fingerprint: failure.description for failure in failures}
    rest: list[Value] = []
    for fingerprint, count in counts.most_common(MAX_GROUPS):
        rest += fingerprint, count, about[fingerprint]
    keys = {"failures": failures_key(queue), "failure_ranks": failure_ranks_key(queue)}
    return load("record_failures").call(keys, rest, most=MAX_GROUPS)
