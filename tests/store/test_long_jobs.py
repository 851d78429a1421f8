"""Jobs with very many payloads: no script walks all of them, or pays for each of them alone."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_lowkiq.integration import dumps
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.dump_format import End, Entry, State, end_line, entry_line
from celery_lowkiq.rules.errors import BadDump
from celery_lowkiq.rules.models import Call, Disposition, Payload, PayloadRemoval
from tests.store.helpers import ONE, claim, contents, end, push, take, waiting

MANY = 1000


def fill(store, count: int = MANY) -> list[tuple[str, float]]:
    """Payloads of one id, pairs of them with equal scores; returned in their order."""
    items = [(f"p{n:04}", float(n // 2)) for n in range(count)]
    store.push(ONE, [Call("1", data.encode(), score, 1.0) for data, score in items])
    return items


def commands_of(client, act) -> int:
    """How often scripts wrote to sorted sets while it acts."""
    client.config_resetstat()
    act()
    found = client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("zadd", "zrem"))


@pytest.mark.parametrize(
    "disposition", [Disposition.RETRY, Disposition.DIE, Disposition.BURY, Disposition.RETURN]
)
def test_a_settle_writes_payloads_together(store, client, disposition):
    """P8: a claim of 1,000 payloads is settled in a few commands, not in some for each of them."""
    fill(store)
    lease = take(store)
    claimed = claim(store, lease)
    assert commands_of(client, lambda: end(store, lease, claimed, disposition, error=b"boom")) < 30


def test_bad_payloads_are_buried_together(store, client):
    """P8: a settle of 1,000 bad payloads."""
    items = fill(store)
    lease = take(store)
    claimed = claim(store, lease)
    bad = tuple(PayloadRemoval(position, b"bad") for position in range(1, MANY))
    assert commands_of(client, lambda: end(store, lease, claimed, bad=bad)) < 30
    assert waiting(store, "1") is None
    assert client.hlen("lowkiq:1:{orders:0}:dead_spill") == len(items) - 1


def test_a_push_merges_the_payloads_of_an_id_together(store, client):
    """P8: a bulk push of one id that waits already."""
    push(store, "1", ("first", -1.0), perform_in=1.0)
    assert commands_of(client, lambda: fill(store, 400)) < 10


def test_payloads_that_are_written_together_keep_their_order(store):
    """P8: equal scores keep the order of arrival, through a failure that meets newer ones."""
    items = fill(store)
    lease = take(store)
    claimed = claim(store, lease)
    newer = [(f"n{n:04}", float(n // 2)) for n in range(300)]
    push(store, "1", *newer, perform_in=1.0)
    end(store, lease, claimed, Disposition.RETRY, error=b"boom")
    expected = sorted([*items, *newer], key=lambda item: item[1])
    found = contents(claim(store, lease))["1"]
    assert found == expected[:MANY]


def test_equal_payloads_in_one_bulk_push_are_one(store):
    """P8: of equal payloads that are written together, the smaller score stays."""
    jobs = [Call("1", b"p%d" % (n % 100), float(1000 - n), 1.0) for n in range(400)]
    store.push(ONE, jobs)
    found = contents(claim(store, take(store)))["1"]
    assert found == [(f"p{n % 100}", float(1000 - n)) for n in range(399, 299, -1)]


def entry(payloads: int, job_id: str = "1") -> Entry:
    return Entry(State.WAITING, job_id, 1.0, payloads=tuple(Payload(b"%d" % n, 1.0) for n in range(payloads)))


def parsed(*entries: Entry):
    lines = [entry_line(number, found) for number, found in enumerate(entries, 1)]
    context = context_of(Celery(broker="redis://localhost:1/0", set_as_current=False))
    return dumps._parsed(context, [*lines, end_line(End(len(entries)))])


def test_a_load_takes_a_bounded_number_of_payloads_at_once():
    """P8: lines of long jobs were all loaded by one script."""
    chunks = list(dumps._chunks(parsed(*[entry(300, str(n)) for n in range(10)])))
    assert max(sum(len(found.payloads) for _, found in chunk) for chunk in chunks) == 600
    assert sum(map(len, chunks)) == 10


def test_a_line_of_a_dump_has_a_bounded_number_of_payloads():
    """P8: no script is as long as somebody's file says."""
    with pytest.raises(BadDump, match="line 1: it has more than 2000 payloads"):
        list(parsed(entry(2001)))
