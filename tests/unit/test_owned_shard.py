"""What an owner may conclude from the answer to a renewal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.models import Lease, QueueSpec, ShardRef
from celery_lowkiq.worker.owned_shard import OwnedShard

SHARD = ShardRef("q", 0)


@pytest.fixture
def owned():
    return OwnedShard(QueueSpec("q"), Lease(SHARD, "me", 1, "before"), lease_seconds=10, renewed_at=100)


def test_an_answer_in_time_tells_which_server_has_the_lease(owned):
    assert owned.renew(replace(owned.lease, server="after"), sent_at=106, answered_at=107.9)
    assert (owned.lease.server, owned.renewed_at) == ("after", 106)


def test_a_late_answer_from_another_server_proves_nothing(owned):
    """Another node may have taken the shard, and that server has lost it: also if it was sent in time."""
    assert not owned.renew(replace(owned.lease, server="after"), sent_at=106, answered_at=108)
    assert (owned.lease.server, owned.renewed_at) == ("before", 100)


def test_an_owner_that_has_sent_a_release_is_no_owner_on_another_server(owned):
    """That server may have lost the release, of which no answer came, and the next owner with it."""
    owned.may_be_released = True
    assert not owned.renew(replace(owned.lease, server="after"), sent_at=106, answered_at=107)
    assert (owned.lease.server, owned.renewed_at) == ("before", 100)
    assert owned.renew(owned.lease, sent_at=106, answered_at=107)


def test_a_late_answer_from_its_own_server_counts_from_its_sending(owned):
    owned.lost.set()
    assert owned.renew(owned.lease, sent_at=120, answered_at=130)
    assert owned.renewed_at == 120
    assert not owned.lost.is_set()


def test_a_lease_is_the_same_on_another_server(owned):
    assert replace(owned.lease, server="after") == owned.lease
