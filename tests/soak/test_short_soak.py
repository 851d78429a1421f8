"""The plan of a soak run, and a short run; ``nox -s soak`` has the long ones."""

from __future__ import annotations

from itertools import pairwise

import pytest

from celery_lowkiq.rules.errors import ConfigurationError
from tests.soak.__main__ import main
from tests.soak.kinds import KINDS, QUEUES, queues
from tests.soak.options import Options
from tests.soak.plan import Deploy, Kill, plan
from tests.soak.run import judge, run


def test_an_hour_has_a_deploy_each_ten_minutes_and_a_kill_each_five():
    steps = list(plan(Options()))
    kills = [step for step in steps if isinstance(step, Kill)]
    assert [step.at for step in steps if isinstance(step, Deploy)] == [600, 1200, 1800, 2400, 3000]
    assert [kill.at for kill in kills] == [150 + 300 * n for n in range(12)]
    assert {kill.node for kill in kills} == {0, 1, 2, 3}
    assert all(one.at <= other.at for one, other in pairwise(steps))


def test_the_queues_have_all_kinds():
    made = queues("soak")
    assert len(made) == QUEUES
    assert {kind.name for kind in made.values()} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"lease": 0.1}, {"exclusion": "none"}, {"rate": -1.0}])
def test_an_impossible_run_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="is invalid: expected"):
        Options(**wrong)


@pytest.mark.full
def test_a_short_run_has_a_clean_ledger_samples_and_a_plot(tmp_path, capsys):
    samples = tmp_path / "samples.jsonl"
    options = Options(seconds=25.0, deploy_every=15.0, kill_every=10.0, lease=5.0)
    report = run(options, samples, print)
    grown = {gate.name for gate in report.gates if gate.name.startswith("growth")}
    assert report.failed() - grown == set(), report
    assert len(grown) == 15
    assert judge(samples) == report
    main(["--judge", "--to", str(tmp_path)])
    assert "lost payloads" in capsys.readouterr().out
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
