"""Logger for exceptions of user code, which works even if their ``__str__`` or ``__repr__`` raises."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from celery_lowkiq.rules.loggers import package_logger

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class SafeLogger(Adapter):
    """Logs the current exception, or only the name of its class when the exception cannot be formatted."""

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the current exception at level ERROR."""
        error_class = sys.exc_info()[0]
        try:
            super().exception(msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001 - `logging` itself fails when it reports its failure
            name = error_class.__name__ if error_class else "nothing"
            self.error(f"{msg}, by a {name} that cannot be formatted", *args, stacklevel=2, **kwargs)


safe_logger: SafeLogger = SafeLogger(package_logger, {})
