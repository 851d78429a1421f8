"""A logger for what users' functions raise: classes of theirs may fail when shown, and a lane may not."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class CarefulLogger(Adapter):
    """Logs the exception that is being handled, or only the name of its class where it cannot be shown."""

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        """As a logger's."""
        shown = sys.exc_info()[0]
        try:
            super().exception(msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001 - `logging` itself fails when it tells why it has failed
            name = shown.__name__ if shown else "nothing"
            self.error(f"{msg}, by a {name} that cannot be shown", *args, stacklevel=2, **kwargs)


def careful_logger(name: str) -> CarefulLogger:
    """The logger of that name, careful."""
    return CarefulLogger(logging.getLogger(name), {})
