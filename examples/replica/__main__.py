"""``python -m examples.replica [--events FILE | --repo DIR] [--redis URL] [--pool P] [--run-in R]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kombu.exceptions import OperationalError

from celery_lowkiq import LowkiqError
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration import redis_params

from . import interrupts
from .report import as_json, table
from .repository import read_history, read_tree
from .run import RedisInUse, Stalled, run_side
from .sides import OrderedSide, PlainSide
from .stream import SHIPPED, Event, StreamError, final_tree, read_events, with_copies
from .tasks import RUN_IN_VARIABLE, STORE_VARIABLE, app, mirror_ordered
from .worker import WorkerDied

#: Share of the messages that is delivered twice.
COPIES, SEED = 0.1, 7
# What the celery command and the app read before anything else.
BROKER_VARIABLES = ("BROKER_URL", "CELERY_BROKER_URL")
SCHEMES = ("redis://", "rediss://", "redis+socket://", "sentinel://")
# Celery has no broker for a cluster: a private server is that.
CLUSTER_SCHEMES = tuple(f"{scheme}://" for scheme in redis_params.CLUSTER_SCHEMES)
NOT_CLEAN, FAILED, INTERRUPTED = 1, 2, 130
EXPECTED_ERRORS = (StreamError, RedisInUse, Stalled, WorkerDied, LowkiqError, OperationalError)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.replica", description=run.__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--events", type=Path, metavar="FILE", default=SHIPPED, help="stream, *.ndjson or *.ndjson.gz"
    )
    source.add_argument("--repo", type=Path, metavar="DIR", help="git repository to take the history of")
    parser.add_argument(
        "--redis", type=redis_url, metavar="URL", help="Redis to use; by default a private server is started"
    )
    parser.add_argument("--pool", choices=("threads", "prefork"), default="threads", help="Celery's -P")
    parser.add_argument(
        "--run-in",
        choices=("thread", "process"),
        default="thread",
        help="lowkiq_run_in, for the ordered task",
    )
    return parser.parse_args(arguments)


def redis_url(text: str) -> str:
    """A URL that both Celery and the ordered task can use, or that of a cluster for the ordered task."""
    if not text.startswith(SCHEMES + CLUSTER_SCHEMES):
        known = ", ".join(SCHEMES + CLUSTER_SCHEMES)
        raise argparse.ArgumentTypeError(f"the URL must begin with one of {known}")
    return text


def load(options: argparse.Namespace) -> tuple[list[Event], dict[str, str]]:
    """The events, and the tree that they must end in."""
    if options.repo is not None:
        return read_history(options.repo), read_tree(options.repo)
    events = read_events(options.events)
    return events, final_tree(events)


def run(options: argparse.Namespace) -> int:
    """Mirror a tree into SQLite from its history, through a plain Celery task and through an ordered one."""
    events, expected = load(options)
    messages = list(with_copies(events, COPIES, SEED))
    paths = len({event.path for event in events})
    print(
        f"{len(events):,} changes of {paths:,} files, {len(messages) - len(events):,} of them delivered twice"
    )
    with ExitStack() as stack:
        cluster = options.redis if (options.redis or "").startswith(CLUSTER_SCHEMES) else ""
        url = (not cluster and options.redis) or stack.enter_context(EmbeddedServer()).url
        os.environ.update({**dict.fromkeys(BROKER_VARIABLES, url), RUN_IN_VARIABLE: options.run_in})
        # For the workers, and for the app of this process, which was made before.
        os.environ[STORE_VARIABLE], app.conf.lowkiq_url = cluster, cluster or None
        if options.redis:
            # A mistake in it would only be noticed after the plain task.
            mirror_ordered.ordered_queue.stats()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replica-")))
        celery, ordered = (
            run_side(side, messages, expected, directory, options.pool)
            for side in (PlainSide(), OrderedSide())
        )
    print(table(celery, ordered))
    print(as_json(len(events), paths, celery, ordered))
    return 0 if ordered.clean else NOT_CLEAN


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and turn expected errors into a message and an exit status."""
    interrupts.handle()
    try:
        return run(parse(arguments))
    except EXPECTED_ERRORS as error:
        print(f"replica: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
