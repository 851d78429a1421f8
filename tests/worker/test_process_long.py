"""``run_in="process"`` for long, and under load: ``nox -s processes`` runs these with more rounds."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from functools import partial
from statistics import median

import psutil
import pytest
import redis

from tests.waiting import eventually
from tests.worker import in_processes
from tests.worker.checks import is_alive, leases, overlaps, suspects

pytestmark = pytest.mark.full

#: How often each way to end is tried, and how often a child is replaced.
ROUNDS = int(os.environ.get("LOWKIQ_PROCESS_ROUNDS", "5"))
RECYCLINGS = int(os.environ.get("LOWKIQ_RECYCLINGS", "200"))
#: Seconds that one run may take on a busy machine, with a new process for it.
SLOW = 3.0
ENDS = ("segfault", "kill", "exit", "leave", "fail")


@pytest.fixture
def app(settings):
    settings.update(task_ignore_result=True, lowkiq_lease_seconds=10.0)
    made = in_processes.make_app(**settings)
    yield made
    made.close()


@pytest.fixture
def start(start_worker):
    return partial(start_worker, module="tests.worker.in_processes")


def settled(*tasks):
    found = [task.ordered_queue.stats() for task in tasks]
    return all(stats.length == stats.busy == 0 for stats in found)


def test_whatever_processes_die_of_no_job_is_lost_or_settled_twice(app, start, ledger):
    """Each way to end again and again, among runs that end well, on four lanes."""
    node, act, hard = start(lanes=4), app.tasks["act"], app.tasks["hard"]
    ways = [(f"{end}-{n}", end) for end in ENDS for n in range(ROUNDS)]
    good = [(f"good-{n}", "good") for n in range(20 * ROUNDS)]
    random.Random(1).shuffle(jobs := ways + good)
    act.perform_async([{"id": job_id, "payload": end} for job_id, end in jobs])
    hard.perform_async(
        [{"id": f"{end}-{n}", "payload": end} for end in ("stubborn", "hold") for n in range(2)]
    )
    runs = len(jobs) + 3 * len(ways)
    eventually(lambda: settled(act, hard), 120 + runs * SLOW)
    stats = act.ordered_queue.stats()
    assert (stats.processed, stats.morgue_length) == (len(good), len(ways))
    ended = Counter(line["id"] for line in ledger.lines("end"))
    assert ended == dict.fromkeys((job_id for job_id, _ in good), 1)
    begun = Counter(line["id"] for line in ledger.lines("start"))
    deaths = {job_id: 2 if end == "fail" else 1 + act.max_crashes for job_id, end in ways}
    assert {job_id: begun[job_id] for job_id in deaths} == deaths
    assert overlaps(ledger.lines()) == []
    assert (suspects(act), hard.ordered_queue.stats().morgue_length) == (0, 4)
    assert node.container.status == "running"


def beside(app, count):
    """Runs that end well, among those that do not, on the same lanes."""
    app.tasks["act"].perform_async([{"id": f"good-{n}", "payload": "good"} for n in range(count)])


def check_good(app, ledger, count):
    """Nothing of these was lost or settled twice."""
    act = app.tasks["act"]
    eventually(lambda: settled(act), 120)
    ended = Counter(line["id"] for line in ledger.lines("end") if line["id"].startswith("good-"))
    assert ended == dict.fromkeys((f"good-{n}" for n in range(count)), 1)
    assert suspects(act) == act.ordered_queue.stats().morgue_length == 0


@pytest.mark.parametrize(
    ("what", "name", "error"),
    [
        ("softly", "short", "SoftTimeLimitExceeded()"),
        ("stubborn", "short", "TimeLimitExceeded(0.8"),
        ("hold", "cut short", "TimeLimitExceeded(0.5"),
    ],
)
def test_each_run_over_its_limit_fails_alone(app, start, ledger, what, name, error):
    """The soft limit, the hard one, and the hard one of a function that keeps the interpreter's lock."""
    node, short = start(lanes=4), app.tasks[name]
    short.perform_async([{"id": f"{what}-{n}", "payload": what} for n in range(ROUNDS)])
    beside(app, 5 * ROUNDS)
    eventually(lambda: settled(short), 120 + ROUNDS * SLOW)
    check_good(app, ledger, 5 * ROUNDS)
    begun = Counter(line["id"] for line in ledger.lines("start") if line["id"].startswith(what))
    assert begun == {f"{what}-{n}": 2 for n in range(ROUNDS)}
    buried = list(short.ordered_queue.morgue(limit=ROUNDS).items)
    assert len(buried) == ROUNDS
    assert [job.error for job in buried if error not in job.error] == []
    # One that the soft limit ends leaves its process alive.
    others = [line for line in ledger.lines() if not line.get("id", "").startswith("softly")]
    assert (suspects(short), overlaps(others), node.container.status) == (0, [], "running")
    print(f"{2 * ROUNDS} runs of {what} ended, {ROUNDS} jobs in the morgue, load {os.getloadavg()[0]:.1f}")


@pytest.mark.parametrize("what", ["clean up", "stubborn", "hold", "start another"])
def test_each_run_is_terminated_once(app, start, ledger, what):
    node, act = start(lanes=4, PROJ_END_TIMEOUT="0.5"), app.tasks["act"]
    act.perform_async([{"id": f"bad-{n}", "payload": what} for n in range(ROUNDS)])
    beside(app, 5 * ROUNDS)
    revoked = []

    def next_one():
        return [
            line["task_id"]
            for line in ledger.lines("other" if what == "start another" else "start")
            if not line.get("id", "").startswith("good-") and line["task_id"] not in revoked
        ]

    while len(revoked) < ROUNDS:
        new = eventually(next_one)
        app.control.revoke(new, terminate=True)
        revoked += new
    check_good(app, ledger, 5 * ROUNDS)
    begun = Counter(line["id"] for line in ledger.lines("start") if line["id"].startswith("bad-"))
    assert begun == dict.fromkeys((f"bad-{n}" for n in range(ROUNDS)), 1)
    assert len(ledger.lines("cleaned up")) == (ROUNDS if what == "clean up" else 0)
    others = [line["other"] for line in ledger.lines("other")]
    assert len(others) == (ROUNDS if what == "start another" else 0)
    assert not any(map(is_alive, others))
    assert (overlaps(ledger.lines()), node.container.status) == ([], "running")
    print(f"{ROUNDS} runs of {what} terminated, load {os.getloadavg()[0]:.1f}")


def test_each_run_learns_that_its_lease_is_lost(app, settings, start, ledger):
    """Workers are frozen until another one has begun the run anew; the children of frozen ones go on."""
    settings["lowkiq_lease_seconds"] = 1.0
    # Only this queue: a lane would wait for both a run and its loss.
    nodes = {f"w{number}@test": start("-Q", "act", lanes=4) for number in range(2)}
    act, freezes = app.tasks["act"], 0
    act.perform_async([{"id": f"once-{n}", "payload": "lost once"} for n in range(ROUNDS)])
    beside(app, 5 * ROUNDS)

    while len(lost := {line["id"] for line in ledger.lines("lost")}) < ROUNDS:
        waiting = [line for line in ledger.lines("waits") if line["id"] not in lost]
        if not waiting:
            ledger.wait_for("waits", len(lost) + 1)
            continue
        freezes += 1
        name = waiting[0]["node"]
        nodes[name].kill("SIGSTOP")
        eventually(lambda: not any(lease.owner.startswith(name) for lease in leases(act)))  # noqa: B023
        nodes[name].kill("SIGCONT")
        ledger.wait_for("lost", len(lost) + 1)
    eventually(lambda: settled(act), 120)
    assert [line for line in ledger.lines("lost") if not line["was_set"]] == []
    stats = act.ordered_queue.stats()
    assert (stats.processed, stats.morgue_length, suspects(act)) == (6 * ROUNDS, 0, 0)
    assert {line["id"] for line in ledger.lines("end")} >= {f"once-{n}" for n in range(ROUNDS)}
    print(f"{ROUNDS} runs lost their lease in {freezes} freezes, load {os.getloadavg()[0]:.1f}")


def test_each_worker_that_dies_leaves_no_child(app, settings, start, ledger):
    """Four children a worker, of which each keeps the interpreter's lock."""
    lived = []
    for round_ in range(max(2, ROUNDS // 4)):
        with redis.Redis.from_url(settings["broker_url"].replace("redis+socket", "unix")) as client:
            client.flushdb()
        known = len(ledger.lines("start"))
        app.tasks["act"].perform_async([{"id": f"{round_}-{n}", "payload": "hold"} for n in range(40)])
        node = start(lanes=4)
        pids = [line["pid"] for line in ledger.wait_for("start", known + 4)[known:]]
        node.kill("SIGKILL")
        died_at = time.monotonic()
        eventually(lambda: not any(map(is_alive, pids)), 20)  # noqa: B023
        lived.append(time.monotonic() - died_at)
    print(
        f"{len(lived)} workers died; their last child after {median(lived):.3f} s, at most {max(lived):.3f} s"
    )
    assert median(lived) < 1.0


def test_what_a_worker_has_stays_flat_while_children_are_replaced(app, settings, start):
    settings["worker_max_tasks_per_child"] = 1
    node, act = start(lanes=4), app.tasks["act"]
    worker = psutil.Process(node.container.process.pid)

    def figures():
        server = next(each for each in worker.children() if "forkserver" in " ".join(each.cmdline()))
        both = worker, server
        cpu = sum(sum(each.cpu_times()[:4]) for each in both)
        return [each.num_fds() for each in both], [each.memory_info().rss / 2**20 for each in both], cpu

    def recycle(count):
        before = act.ordered_queue.stats().processed
        act.perform_async([{"id": str(n), "payload": "good"} for n in range(count)])
        eventually(lambda: act.ordered_queue.stats().processed == before + count, 60 + count * SLOW)
        return figures()

    fds, memory, cpu = recycle(max(20, RECYCLINGS // 10))
    for part in range(1, 5):
        later_fds, later_memory, later_cpu = recycle(RECYCLINGS // 4)
        count = RECYCLINGS // 4 * part
        print(
            f"{count} recyclings: descriptors {fds} -> {later_fds}, MiB {memory} -> {later_memory}, "
            f"{(later_cpu - cpu) / count * 1e3:.1f} ms CPU each, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    # Pipes of the lanes that have a child at that moment.
    assert all(after <= before + 12 for before, after in zip(fds, later_fds, strict=True))
    assert all(after <= before + 8 for before, after in zip(memory, later_memory, strict=True))


def test_a_poison_pill_does_not_slow_other_lanes(app, start, ledger):
    node, act, pills = start(lanes=4), app.tasks["act"], app.tasks["hard"]

    def seconds_a_run(round_, with_pills):
        """The median over the lanes without the pills."""
        count = len(ledger.lines())
        if with_pills:
            pills.perform_async([{"id": f"{round_}-{n}", "payload": "segfault"} for n in range(20)])
        act.perform_async([{"id": f"{round_}-{n}", "payload": "nap"} for n in range(400)])
        eventually(lambda: settled(act, pills), 300)
        by_lane = {}
        for line in ledger.lines()[count:]:
            if line["event"] == "end":
                by_lane.setdefault(line["lane"], []).append(line["at"])
        slowest = max(by_lane, key=lambda lane: (by_lane[lane][-1] - by_lane[lane][0]) / len(by_lane[lane]))
        if with_pills:
            del by_lane[slowest]
        return median(later - at for ends in by_lane.values() for at, later in itertools.pairwise(ends))

    seconds_a_run("warm", False)
    rounds = [(seconds_a_run(f"a{n}", False), seconds_a_run(f"b{n}", True)) for n in range(3)]
    without, beside = (median(each) for each in zip(*rounds, strict=True))
    print(f"a run takes {without * 1e3:.1f} ms, beside pills {beside * 1e3:.1f} ms")
    assert beside < 1.1 * without
    assert node.container.status == "running"


def test_lanes_that_compute_use_all_cores(app, settings, start):
    """Beside the same in threads, of which one computes at a time."""
    took = {}
    for run_in in ("thread", "process"):
        settings["lowkiq_run_in"] = run_in
        node, act = start(lanes=4), app.tasks["act"]
        before = act.ordered_queue.stats().processed
        # All lanes have a process.
        act.perform_async([{"id": str(n), "payload": "nap"} for n in range(40)])
        eventually(lambda: act.ordered_queue.stats().processed == before + 40, 60)  # noqa: B023
        began = time.monotonic()
        act.perform_async([{"id": str(n), "payload": "compute"} for n in range(40)])
        eventually(lambda: act.ordered_queue.stats().processed == before + 80, 300)  # noqa: B023
        took[run_in] = time.monotonic() - began
        node.kill("SIGTERM")
        assert node.exit_status() == 0
    gain = took["thread"] / took["process"]
    print(f"40 computing runs: {took}, {gain:.2f} times, load {os.getloadavg()[0]:.1f}")
    assert gain > min(4, psutil.cpu_count() or 1) * 0.6
