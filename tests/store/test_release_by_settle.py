"""A settle that releases its shard in the same round trip."""

from __future__ import annotations

from celery_lowkiq.rules.claims import Claim, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import NotOwner, StoreError
from celery_lowkiq.rules.models import Disposition, Lease, Settlement
from celery_lowkiq.store.errors import WrongType
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.store.helpers import ONE, SHARD, claim, ids_of, listening, push, stats, take

PAST = 1000.0


def settle(store: RedisStore, lease: Lease, claimed: Claim) -> SettleReply | StoreError | None:
    settlements = tuple(Settlement(job.id, claimed.number, Disposition.DONE) for job in claimed.jobs)
    answer, _ = store.exchange(SettleRequest(ONE, lease, settlements, release=True), None)
    return answer


def owner(store: RedisStore) -> str:
    (state,) = store.observe([SHARD])
    return state.owner


def claimed_by(store: RedisStore, *job_ids: str) -> tuple[Lease, Claim]:
    for job_id in job_ids:
        push(store, job_id, ("a", 1), perform_in=PAST)
    lease = take(store)
    return lease, claim(store, lease)


def test_settle_and_release_are_one_round_trip_and_are_announced(store, monkeypatch):
    # Loads the scripts.
    settle(store, *claimed_by(store, "1"))
    lease, claimed = claimed_by(store, "2")
    sends, send = [], store.client.servers.send
    with listening(store) as heard:
        monkeypatch.setattr(store.client.servers, "send", lambda commands: sends.append(1) or send(commands))
        answer = settle(store, lease, claimed)
        assert (answer.accepted, answer.released) == ({"2"}, True)
        assert sends == [1]
        assert heard() == (SHARD, None)
    assert owner(store) == ""


def test_a_shard_with_another_claim_in_processing_is_kept(store):
    lease, first = claimed_by(store, "1")
    push(store, "2", ("a", 1), perform_in=PAST)
    claim(store, lease, in_hand=None)
    answer = settle(store, lease, first)
    assert (answer.accepted, answer.released) == ({"1"}, False)
    assert owner(store) == "me"
    assert stats(store).busy == 1


def test_a_settle_that_is_refused_keeps_the_shard(store, client):
    lease, claimed = claimed_by(store, "1")
    client.set(shard_keys(SHARD)["due"], "foreign")
    assert isinstance(settle(store, lease, claimed), WrongType)
    assert owner(store) == "me"


def test_a_settle_whose_script_must_be_loaded_first_is_not_overtaken_by_the_release(store, client):
    lease, claimed = claimed_by(store, "1", "2")
    client.script_flush()
    # Loads its script only.
    assert not store.release(lease)
    answer = settle(store, lease, claimed)
    assert (answer.accepted, answer.released) == ({"1", "2"}, False)
    assert owner(store) == "me"
    assert store.release(lease)


def test_one_that_is_repeated_since_its_reply_was_lost_changes_nothing(store):
    lease, claimed = claimed_by(store, "1")
    push(store, "2", ("a", 1), perform_in=PAST)
    assert settle(store, lease, claimed).released
    assert isinstance(settle(store, lease, claimed), NotOwner)
    heir = take(store, owner="heir")
    assert ids_of(claim(store, heir)) == ["2"]
    assert isinstance(settle(store, lease, claimed), NotOwner)
    assert owner(store) == "heir"
    assert (stats(store).busy, stats(store).processed) == (1, 1)
