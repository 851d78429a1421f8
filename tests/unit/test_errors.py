"""Errors travel between processes: in results, and in events."""

from __future__ import annotations

import copy
import pickle

import pytest

from celery_lowkiq.rules import errors
from celery_lowkiq.rules.models import Layout

ERRORS = [
    errors.QueueResharded("orders", Layout(5)),
    errors.QueueMigrating("orders", Layout(7, 5)),
    errors.MigrationPaused("orders", Layout(7, 5)),
    errors.ShardRepairing("orders", 2, "its keys are gone"),
    errors.UnknownTracker("abc"),
    errors.ClusterNode(),
    errors.NotClusterNode(),
    errors.SentinelAddress("HGET"),
    errors.InvalidCall("no id", 7),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickle_and_copy(error):
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)]
    for same in [*copies, copy.deepcopy(error)]:
        assert type(same) is type(error)
        assert (same.args, vars(same)) == (error.args, vars(error))
