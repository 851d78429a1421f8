"""Attacks of somebody who can write all keys in Redis: each is refused, and logged, while others run.

Their names say what is forged. A job waits for its attack, because it is due later; then it is made due.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.signatures import KeyRing, split_record
from celery_lowkiq.store.call_records import digest
from tests.traps import trap
from tests.waiting import eventually
from tests.worker.signing_proj import KEYS, NEW, make_app
from tests.worker.signing_shop import CHANGED, FORGED, HONEST, LATER, Shop, dumped

REORDERED = "signed scores of its job descend: their order was changed"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    directory = Path(tmp_path_factory.mktemp("signing"))
    with EmbeddedServer() as server:
        made = Shop(server, directory)
        yield made
        made.node.teardown()
        made.app.backend.remove_pending_result = lambda result: None
        made.app.close()
        made.client.close()


@pytest.fixture
def job_id(shop):
    return shop.new_id()


# -- payloads


def test_what_is_signed_runs(shop, job_id):
    result = shop.call(job_id, countdown=None, ignore_result=False)
    assert result.get(30) == "paid"
    assert shop.ran(job_id) == [HONEST]


def test_s2_a_payload_that_is_copied_to_another_queue(shop, job_id):
    shop.call(job_id)
    shop.write(job_id, shop.record(job_id), queue="refund")
    shop.buries(job_id, CHANGED, "refund")


def test_a_payload_that_is_swapped_between_two_ids(shop, job_id):
    other = shop.new_id()
    shop.call(job_id)
    shop.call(other, FORGED)
    shop.write(job_id, shop.record(other))
    shop.buries(job_id, CHANGED)


def test_a_payload_that_is_edited(shop, job_id):
    shop.call(job_id)
    shop.change(job_id, b'"amount":10', b'"amount":99')
    shop.buries(job_id, CHANGED)


def test_s1_a_payload_that_nobody_signed(shop, job_id):
    shop.write(job_id, b"1  " + dumped(FORGED))
    shop.buries(job_id, "it is not signed")


def test_a_payload_whose_signature_is_stripped(shop, job_id):
    shop.call(job_id)
    score, _, payload = shop.record(job_id).split(b" ", 2)
    shop.write(job_id, score + b"  " + payload)
    shop.buries(job_id, "it is not signed")


@pytest.mark.parametrize("cut", [1, 2, 8, 23])
def test_a_truncated_signature(shop, job_id, cut):
    shop.call(job_id)
    score, signature, payload = shop.record(job_id).split(b" ", 2)
    shop.write(job_id, b" ".join((score, signature[:-cut], payload)))
    shop.buries(job_id, "its signature is malformed")


def test_a_longer_signature(shop, job_id):
    shop.call(job_id)
    score, signature, payload = shop.record(job_id).split(b" ", 2)
    shop.write(job_id, b" ".join((score, signature + b"AAAA", payload)))
    shop.buries(job_id, "its signature is malformed")


def test_a_signature_of_an_unknown_key(shop, job_id):
    signature = KeyRing({"mine": b"the secret of mallory"}).sign_payload(
        "pay", job_id.encode(), dumped(FORGED)
    )
    shop.write(job_id, b"1 %b %b" % (signature, dumped(FORGED)))
    shop.buries(job_id, "the key of its signature is not in lowkiq_signing_keys")


def test_a_forged_signature_that_names_the_right_key(shop, job_id):
    shop.call(job_id)
    signature = shop.record(job_id).split(b" ")[1]
    shop.write(job_id, b"1 %b %b" % (signature[:4] + b"A" * 20, dumped(FORGED)))
    shop.buries(job_id, CHANGED)


def test_a_forged_score(shop, job_id):
    shop.call(job_id, score=5)
    shop.change(job_id, b"5 ", b"9 ")
    shop.buries(job_id, CHANGED)


def test_a_signature_of_a_score_made_one_of_no_score(shop, job_id):
    shop.call(job_id, score=5)
    record = shop.record(job_id)
    assert record.startswith(b"5 S")
    shop.write(job_id, b"9 s" + record[3:])
    shop.buries(job_id, CHANGED)


def test_the_signature_of_a_record_as_that_of_a_payload(shop, job_id):
    ring = KeyRing({"x": NEW.encode()})
    found = ring.sign_record("pay", job_id.encode(), b"\0" * 10, dumped(FORGED))
    shop.write(job_id, b"1 %b %b" % (b"s" + found[1:], b"\0" * 10 + dumped(FORGED)))
    shop.buries(job_id, CHANGED)


def test_a_payload_among_honest_ones_of_its_id(shop, job_id):
    shop.call(job_id, score=1)
    shop.call(job_id, {"amount": 11}, score=3)
    record = shop.record(job_id)
    forged = dumped(FORGED)
    at = record.index(b"3 ")
    shop.write(job_id, record[:at] + b"2 %d %b" % (len(forged), forged) + record[at:])
    eventually(lambda: shop.dead(job_id), 30)
    eventually(lambda: shop.ran(job_id) == [HONEST, {"amount": 11}], 30)


def test_signed_scores_that_descend(shop, job_id):
    """All of them are refused, because nobody knows which one was moved; others of the id run."""
    shop.call(job_id, score=1)
    shop.call(job_id, {"amount": 11}, score=2)
    shop.call(job_id, {"amount": 12})
    record = shop.record(job_id)
    at, end = record.index(b"2 "), record.rindex(b" ", 0, record.index(b'{"amount":12}'))
    end = record.rindex(b"}", 0, end) + 1
    shop.write(job_id, record[at:end] + record[:at] + record[end:])
    eventually(lambda: shop.ran(job_id) == [{"amount": 12}], 30)
    dead = eventually(lambda: (found := shop.dead(job_id)) and found.payload_count == 2 and found, 30)
    assert dead.error == f"unverified payload: {REORDERED}"
    shop.tasks["pay"].ordered_queue.requeue([job_id])
    eventually(lambda: shop.ran(job_id)[1:] == [HONEST, {"amount": 11}], 30)


def test_signed_scores_of_a_spilled_job_that_descend(shop, job_id):
    values = [{"amount": n, "text": "x" * 400} for n in range(4)]
    for n, value in enumerate(values):
        shop.call(job_id, value, score=n)
    spill, order = (shop.key("pay", job_id, name) for name in ("spill", "spill_order"))
    head = job_id.encode() + b"\0"
    fields = [head + dumped(value) for value in values]
    first, last = (shop.client.hget(spill, fields[n]) for n in (0, 3))
    moved, payload = last[:27] + b"f" + first[28:], dumped(values[0])
    shop.client.zrem(order, head + first + payload)
    shop.client.zadd(order, {head + moved + payload: 0})
    shop.client.hset(spill, fields[0], moved)
    shop.run(job_id)
    dead = eventually(lambda: (found := shop.dead(job_id)) and found.payload_count == 4 and found, 30)
    assert (dead.error, shop.ran(job_id)) == (f"unverified payload: {REORDERED}", [])


def test_a_payload_of_a_spilled_job(shop, job_id):
    values = [{"amount": n, "text": "x" * 400} for n in range(6)]
    for n, value in enumerate(values):
        shop.call(job_id, value, score=n)
    spill, order = (shop.key("pay", job_id, name) for name in ("spill", "spill_order"))
    assert shop.record(job_id) == b"S"
    (field,) = [one for one in shop.client.hkeys(spill) if b'"amount":3' in one and job_id.encode() in one]
    place, payload = shop.client.hget(spill, field), field.partition(b"\0")[2]
    new = payload.replace(b'"amount":3', b'"amount":7')
    shop.client.hdel(spill, field)
    shop.client.hset(spill, job_id.encode() + b"\0" + new, place)
    shop.client.zrem(order, job_id.encode() + b"\0" + place + payload)
    shop.client.zadd(order, {job_id.encode() + b"\0" + place + new: 0})
    shop.run(job_id)
    assert eventually(lambda: shop.dead(job_id), 30).error == f"unverified payload: {CHANGED}"
    eventually(lambda: shop.ran(job_id) == [v for v in values if v["amount"] != 3], 30)


def test_a_job_that_is_planted_in_processing(shop, job_id):
    record = b"0 1 -1 0 1 %d %b" % (len(dumped(FORGED)), dumped(FORGED))
    shop.client.hset(shop.key("pay", job_id, "processing"), job_id, record)
    shop.client.zadd(shop.key("pay", job_id, "claimed"), {job_id: 0})
    shop.buries(job_id, "it is not signed")


def test_a_dead_payload_that_is_planted_and_requeued_with_all_others(shop, job_id):
    """An operator who requeues all must not vouch for it."""
    shop.client.hset(shop.key("pay", job_id, "dead_jobs"), job_id, b"1  " + dumped(FORGED))
    shop.client.hset(shop.key("pay", job_id, "dead_errors"), job_id, b"Timeout: the bank did not answer")
    shop.client.zadd(shop.key("pay", job_id, "dead"), {job_id: 1})
    shop.client.zadd(shop.key("pay", job_id, "dead_ids"), {job_id: 0})
    shop.tasks["pay"].ordered_queue.requeue_all()
    eventually(lambda: "unverified" in (shop.dead(job_id) or shop).__dict__.get("error", ""), 30)
    assert shop.ran(job_id) == []


def test_a_payload_written_as_pickle(shop, job_id):
    data = trap(shop.evil)
    shop.write(job_id, b"1 %d " % len(data) + data)
    shop.buries(job_id, "it is not signed")
    assert not shop.evil.exists()


def test_what_does_not_verify_holds_its_id(shop, job_id):
    """With when_dead="hold"."""
    shop.call(job_id, FORGED, queue="refund", score=1)
    shop.change(job_id, b"mallory", b"nobody!", queue="refund")
    shop.buries(job_id, CHANGED, "refund")
    shop.call(job_id, queue="refund", countdown=None, score=2)
    queue = shop.tasks["refund"].ordered_queue
    assert queue.job(job_id).waiting.held
    queue.edit_dead_payload(job_id, {"amount": 1_000_000, "to": "nobody!"}, {"amount": 1, "to": "anna"})
    queue.requeue([job_id])
    eventually(lambda: shop.ran(job_id, "refund") == [{"amount": 1, "to": "anna"}, HONEST], 30)


# -- records of calls


def with_link(shop, job_id, text="paid"):
    link = shop.tasks["receipt"].si(f"receipt-of-{job_id}", text)
    return shop.call(job_id, link=link, ignore_result=False)


def test_s2_a_forged_callback(shop, job_id):
    with_link(shop, job_id)
    shop.change_call(job_id, lambda record: record.replace(b'"paid"', b'"free"'))
    shop.run(job_id)
    shop.refuses_record(job_id)
    assert shop.ran(f"receipt-of-{job_id}", "receipt") == []


def test_an_honest_callback_runs(shop, job_id):
    with_link(shop, job_id)
    shop.run(job_id)
    eventually(lambda: shop.ran(f"receipt-of-{job_id}", "receipt") == ["paid"], 30)


def test_a_signed_link_to_a_task_that_lowkiq_links_does_not_list(shop, job_id):
    result = shop.call(job_id, link=shop.tasks["refund"].si(job_id, "linked"), ignore_result=False)
    shop.run(job_id)
    shop.refuses_record(job_id, "lowkiq_links does not allow its link to task 'refund'", ran=HONEST)
    shop.call(marker := shop.new_id(), queue="refund", countdown=None)
    eventually(lambda: shop.ran(marker, "refund"), 30)
    assert shop.ran(job_id, "refund") == []
    assert result.state == "PENDING"


def test_s2_a_record_that_nobody_signed(shop, job_id):
    with_link(shop, job_id)
    shop.change_call(job_id, lambda record: split_record(record)[1].replace(b'"paid"', b'"free"'))
    shop.run(job_id)
    shop.refuses_record(job_id, "it is not signed")
    assert shop.ran(f"receipt-of-{job_id}", "receipt") == []


def member_of(shop, job_id, queue="pay"):
    key = shop.key(queue, job_id, "calls")
    (found,) = shop.client.zrangebylex(key, b"[%b\0" % job_id.encode(), b"(%b\1" % job_id.encode())
    return found[len(job_id) + 23 :]


def test_a_record_that_is_swapped_between_two_ids(shop, job_id):
    other = shop.new_id()
    with_link(shop, job_id)
    with_link(shop, other, "for another")
    taken = member_of(shop, other)
    shop.change_call(job_id, lambda _: taken)
    shop.run(job_id)
    shop.refuses_record(job_id)
    assert shop.ran(f"receipt-of-{other}", "receipt") == []


def test_a_record_that_is_swapped_between_two_queues(shop, job_id):
    shop.call(job_id, ignore_result=False, queue="refund")
    with_link(shop, job_id)
    taken = member_of(shop, job_id)
    shop.change_call(job_id, lambda _: taken, queue="refund")
    shop.run(job_id, "refund")
    shop.refuses_record(job_id, queue="refund")


def test_a_record_that_is_swapped_between_two_payloads_of_an_id(shop, job_id):
    result = with_link(shop, job_id)
    record = member_of(shop, job_id)
    shop.call(job_id, {"amount": 0}, ignore_result=False)
    key = shop.key("pay", job_id, "calls")
    start = job_id.encode() + b"\0" + digest(dumped({"amount": 0}))
    (member,) = shop.client.zrangebylex(key, b"[" + start, b"(" + start + b"\xff")
    shop.client.zrem(key, member)
    shop.client.zadd(key, {member[: len(start) + 12] + record: 0})
    shop.run(job_id)
    shop.refuses_record(job_id)
    assert result.get(30) == "paid"


def test_a_forged_header(shop, job_id):
    """Such as reply_to, or an expiry."""
    shop.call(job_id, ignore_result=False, headers={"user": "anna"})
    shop.change_call(job_id, lambda record: record.replace(b'"anna"', b'"root"'))
    shop.run(job_id)
    shop.refuses_record(job_id)


def test_a_forged_record_does_not_end_the_call_of_somebody_else(shop, job_id):
    victim = shop.call(shop.new_id(), ignore_result=False)
    shop.call(job_id, ignore_result=False)
    shop.change_call(job_id, lambda _: b'["%b",{"oops' % victim.id.encode())
    shop.run(job_id)
    shop.refuses_record(job_id, "it is not signed")
    assert victim.state == "PENDING"


def test_a_forged_record_of_a_job_that_an_operator_deletes(shop, job_id):
    """The operator's process ends its calls, and would call its errbacks."""
    link = shop.tasks["receipt"].si(f"receipt-of-{job_id}", "deleted")
    shop.call(job_id, link_error=link, ignore_result=False)
    shop.change_call(job_id, lambda record: record.replace(b'"deleted"', b'"forged!"'))
    shop.tasks["pay"].ordered_queue.bury([job_id])
    assert shop.dead(job_id)
    shop.call(marker := shop.new_id(), countdown=None)
    eventually(lambda: shop.ran(marker), 30)
    assert shop.ran(f"receipt-of-{job_id}", "receipt") == []


# -- operators


def test_an_edit_signs_anew_and_keeps_the_signed_score(shop, job_id):
    queue = shop.tasks["pay"].ordered_queue
    shop.call(job_id, score=5)
    shop.call(job_id, {"amount": 3})
    assert queue.edit_payload(job_id, HONEST, {"amount": 1})
    assert queue.edit_payload(job_id, {"amount": 3}, {"amount": 2})
    assert shop.record(job_id).startswith(b"5 12S")
    shop.run(job_id)
    eventually(lambda: shop.ran(job_id) == [{"amount": 1}, {"amount": 2}], 30)


def test_an_edit_does_not_vouch_for_a_forged_score(shop, job_id):
    """The new payload is the operator's, and its score is not."""
    queue = shop.tasks["pay"].ordered_queue
    shop.call(job_id, score=5)
    forged = shop.record(job_id).replace(b"5 ", b"9 ", 1)
    shop.client.hset(shop.key("pay", job_id, "jobs"), job_id, forged)
    assert queue.edit_payload(job_id, HONEST, {"amount": 1})
    assert shop.record(job_id).startswith(b"9 12s")
    shop.run(job_id)
    eventually(lambda: shop.ran(job_id) == [{"amount": 1}], 30)


def test_an_edit_does_not_vouch_for_a_forged_score_of_a_dead_payload(shop, job_id):
    queue = shop.tasks["pay"].ordered_queue
    shop.call(job_id, score=5)
    queue.bury([job_id])
    key = shop.key("pay", job_id, "dead_jobs")
    shop.client.hset(key, job_id, shop.client.hget(key, job_id).replace(b"5 ", b"9 ", 1))
    assert queue.edit_dead_payload(job_id, HONEST, {"amount": 1})
    assert shop.client.hget(key, job_id).startswith(b"9 12s")


def test_an_edit_without_the_keys_does_not_verify(shop, job_id):
    shop.call(job_id)
    keyless = make_app(shop.server.url, lowkiq_signing="off", lowkiq_signing_keys=None)
    assert keyless.tasks["pay"].ordered_queue.edit_payload(job_id, HONEST, FORGED)
    keyless.close()
    shop.run(job_id)
    shop.buries(job_id, "it is not signed")


def test_a_call_without_the_keys_does_not_run(shop, job_id):
    keyless = make_app(shop.server.url, lowkiq_signing="off", lowkiq_signing_keys=None)
    keyless.tasks["pay"].apply_async((job_id, FORGED), ignore_result=True)
    keyless.close()
    shop.buries(job_id, "it is not signed")


def test_an_operator_vouches_for_what_was_refused(shop, job_id):
    shop.write(job_id, b"1  " + dumped(HONEST))
    shop.buries(job_id, "it is not signed")
    queue = shop.tasks["pay"].ordered_queue
    assert queue.sign_dead([job_id]) == 1
    queue.requeue([job_id])
    eventually(lambda: shop.ran(job_id) == [HONEST], 30)


def test_an_operator_vouches_for_a_score_too(shop, job_id):
    shop.call(job_id, score=5)
    shop.change(job_id, b"5 ", b"9 ")
    shop.buries(job_id, CHANGED)
    shop.tasks["pay"].ordered_queue.sign_dead([job_id])
    assert shop.client.hget(shop.key("pay", job_id, "dead_jobs"), job_id).startswith(b"9 25S")
    shop.tasks["pay"].ordered_queue.requeue([job_id])
    eventually(lambda: shop.ran(job_id) == [HONEST], 30)


def test_run_now_of_a_call_with_a_time_keeps_what_was_signed(shop, job_id):
    """It takes the time out of the payload, unseen."""
    receipt = shop.tasks["receipt"]
    receipt.apply_async((job_id, "first"), countdown=LATER)
    result = receipt.apply_async((job_id, "second"), countdown=2 * LATER)
    receipt.ordered_queue.run_now([job_id])
    eventually(lambda: shop.ran(job_id, "receipt") == ["first", "second"], 30)
    eventually(lambda: result.state == "SUCCESS", 30)


def test_run_now_does_not_vouch_for_a_call_that_was_edited(shop, job_id):
    receipt = shop.tasks["receipt"]
    receipt.apply_async((job_id, "first"), countdown=LATER)
    shop.change(job_id, b'"first"', b'"wrong"', queue="receipt")
    receipt.ordered_queue.run_now([job_id])
    eventually(lambda: shop.dead(job_id, "receipt"), 30)
    assert shop.ran(job_id, "receipt") == []


@pytest.mark.parametrize("mode", ["accept", "require"])
def test_run_now_does_not_sign_a_record_that_nobody_signed(shop, job_id, mode):
    receipt = shop.tasks["receipt"]
    link = receipt.si(f"receipt-of-{job_id}", "forged")
    receipt.apply_async((job_id, "first"), countdown=LATER, link=link)
    shop.change_call(job_id, lambda record: split_record(record)[1], queue="receipt")
    operator = make_app(shop.server.url, lowkiq_signing=mode)
    operator.tasks["receipt"].ordered_queue.run_now([job_id])
    operator.close()
    shop.refuses_record(job_id, "it is not signed", queue="receipt", ran="first")
    assert shop.ran(f"receipt-of-{job_id}", "receipt") == []


@pytest.mark.parametrize("queue", ["pay", "receipt"])
def test_remote_control_decodes_no_pickle_that_nobody_signed(shop, job_id, queue):
    """A worker does not when it runs it, and so must not when it makes it due."""
    data = trap(shop.evil)
    shop.write(job_id, b"1 %d " % len(data) + data, queue=queue)
    for _ in range(2):
        given = {"queue": queue, "job_id": job_id}
        shop.app.control.broadcast("lowkiq_run_now", given, reply=True, timeout=30, limit=1)
    shop.buries(job_id, "it is not signed", queue)
    assert not shop.evil.exists()


def test_a_dump_has_no_key_and_keeps_signatures(shop, job_id):
    queue = shop.tasks["pay"].ordered_queue
    shop.call(job_id, score=5, ignore_result=False)
    lines = list(queue.dump())
    text = b"".join(lines)
    assert NEW.encode() not in text
    assert b'"2026-11"' not in text
    shop.client.hdel(shop.key("pay", job_id, "jobs"), job_id)
    shop.client.zrem(shop.key("pay", job_id, "due"), job_id)
    queue.load(lines)
    shop.run(job_id)
    eventually(lambda: shop.ran(job_id) == [HONEST], 30)


def test_a_dump_that_was_edited(shop, job_id):
    queue = shop.tasks["pay"].ordered_queue
    shop.call(job_id)
    lines = [line.replace(b'"amount":10', b'"amount":99') for line in queue.dump()]
    queue.delete([job_id])
    queue.load(lines)
    shop.run(job_id)
    shop.buries(job_id, CHANGED)


def test_a_dump_that_is_loaded_into_another_queue_is_signed_for_it(shop, job_id):
    pay, refund = (shop.tasks[name].ordered_queue for name in ("pay", "refund"))
    edited = shop.new_id()
    shop.call(job_id, score=5, ignore_result=False)
    shop.call(edited, {"amount": 12})
    lines = [line.replace(b'"amount":12', b'"amount":13') for line in pay.dump()]
    pay.delete([job_id, edited])
    refund.load(lines, renamed=True)
    refund.run_now([job_id, edited])
    eventually(lambda: shop.ran(job_id, "refund") == [HONEST], 30)
    eventually(lambda: shop.dead(edited, "refund"), 30)


# -- last, because they look at all that was said before


def test_no_log_shows_a_key(shop):
    logs = shop.node.logs()
    assert logs
    assert not [secret for secret in KEYS.values() if secret in logs]
