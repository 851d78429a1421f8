"""Record the traces anew: ``nox -s traces``, or ``-- NAME ...`` for some."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery_lowkiq.embedded import EmbeddedServer

TRACES = Path(__file__).parents[2] / "docs" / "walkthrough" / "traces"


def main(names: list[str]) -> None:
    """Record the named traces, or all."""
    with EmbeddedServer(port=0) as server:
        os.environ["WALKTHROUGH_URL"] = server.url
        # Not before: the apps take their broker from there.
        from tests.walkthrough.record import record
        from tests.walkthrough.scripts import SCRIPTS

        for script in SCRIPTS:
            if not names or script.name in names:
                record(script, TRACES / f"{script.name}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
