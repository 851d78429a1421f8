"""Sentinels whose errors name each of them once: redis-py's have all arguments of each connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from redis import exceptions, sentinel

from celery_lowkiq.rules.text import host_port

from .redis_errors import lacks_tls

#: As redis-py writes an error of the system that came while it read.
_OS_ERROR = re.compile(r"\(-?\d+, ['\"](.*)['\"]\)$")
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError)


class NamedSentinels(sentinel.Sentinel):
    """Names the master."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        #: By address, the errors of the sentinels that did not answer the last question.
        self._failures: dict[str, Exception] = {}
        _have_asked(self.sentinels, self._ask)

    def _ask(self, address: str, ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._failures.pop(address, None)
        try:
            return ask(*args, **options)
        except _LOST as error:
            self._failures[address] = error
            raise

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the master. Raises MasterNotFoundError."""
        try:
            return cast("tuple[str, int]", super().discover_master(service_name))  # type: ignore[no-untyped-call]
        except sentinel.MasterNotFoundError:
            raise _not_found(service_name, self.sentinels, self._failures) from None


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return host_port(options["host"], options["port"])


def _have_asked(sentinels: Sequence[Any], ask: Callable[..., Any]) -> None:
    """Have each sentinel asked by ``ask``, which gets its address and its method."""
    for each in sentinels:
        each.sentinel_masters = partial(ask, _address(each), each.sentinel_masters)


def _not_found(
    name: str, sentinels: Sequence[Any], failures: Mapping[str, Exception]
) -> sentinel.MasterNotFoundError:
    addresses, by_reason = sorted(map(_address, sentinels)), dict[str, list[str]]()
    for address in addresses:
        if (error := failures.get(address)) is not None:
            by_reason.setdefault(_reason(error, address), []).append(address)
    lost = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    text = f"No master found for {name!r}"
    if lost and len(failures) < len(addresses):
        text = f"{text}: the sentinels that answer do not name it, and others do not answer: {lost}"
    elif lost:
        text = f"{text}: no sentinel answers: {lost}"
    return sentinel.MasterNotFoundError(text)


def _reason(error: Exception, address: str) -> str:
    """The text of an error without the address."""
    if lacks_tls(error):
        return "no answer with TLS: has the port any? See ssl in sentinel_kwargs"
    text = str(error).replace(f" from {address}", "").rstrip(". ")
    if (found := _OS_ERROR.search(text)) is not None:
        return found[1]
    return text.rpartition(". ")[2] or type(error).__name__
