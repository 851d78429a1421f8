"""The calls of an ordered task from asyncio: ``adelay``, ``aapply_async`` and ``aperform_async``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, overload
from uuid import UUID

from celery.result import AsyncResult

from celery_lowkiq.integration.app.call_threads import NoThreadFree
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.calls.caller_context import of_caller
from celery_lowkiq.integration.calls.lazy_result import as_lazy
from celery_lowkiq.integration.calls.producer import as_celery_error
from celery_lowkiq.integration.calls.validation import BulkEntry
from celery_lowkiq.integration.tracking.tracker import Tracker

from .base_classes import R
from .call_mixin import CallMixin

T = TypeVar("T")
TrackerOrId: TypeAlias = Tracker | str | None
#: Celery's own, which calls ``apply_async``. A user or a test may put another one in its place.
_DELAY = CallMixin.delay


class AsyncCallMixin(CallMixin[R]):
    """Methods that make calls without blocking the event loop.

    Each makes the call of the method without ``a`` in a thread of the app, and raises what it raises.
    """

    @overload
    async def adelay(self, id: str | int | UUID, payload: Any = "") -> AsyncResult[R]: ...

    @overload
    async def adelay(self, payload: Any) -> AsyncResult[R]: ...

    async def adelay(self, *args: Any, **kwargs: Any) -> AsyncResult[R]:
        """Store one call, as :meth:`delay`."""
        found = self.delay
        if getattr(found, "__func__", found) is not _DELAY:
            return await self._in_thread(partial(found, *args, **kwargs))
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> AsyncResult[R]:
        """Store one call, as :meth:`apply_async`, with the same options."""
        return await self._in_thread(partial(self.apply_async, args, kwargs, task_id, **options))

    @overload
    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: Literal[False] = False, tracker: TrackerOrId = None
    ) -> None: ...

    @overload
    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: Literal[True], tracker: TrackerOrId = None
    ) -> Sequence[AsyncResult[R]]: ...

    @overload
    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: bool, tracker: TrackerOrId = None
    ) -> Sequence[AsyncResult[R]] | None: ...

    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: bool = False, tracker: TrackerOrId = None
    ) -> Sequence[AsyncResult[R]] | None:
        """Store many calls at once, as :meth:`perform_async`."""
        return await self._in_thread(partial(self.perform_async, jobs, results, tracker))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        threads = context_of(self._get_app()).call_threads
        try:
            return await threads.run(of_caller(partial(as_lazy, self, call)))
        except NoThreadFree as error:
            raise as_celery_error(error) from None
