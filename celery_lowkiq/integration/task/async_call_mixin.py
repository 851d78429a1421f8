"""The calls of an ordered task from asyncio: ``adelay``, ``aapply_async`` and ``aperform_async``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, overload
from uuid import UUID

from celery.result import AsyncResult

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.calls.caller_context import of_caller
from celery_lowkiq.integration.calls.lazy_result import as_lazy
from celery_lowkiq.integration.calls.producer import as_celery_error
from celery_lowkiq.integration.calls.push_request import CallRequest, PushRequest
from celery_lowkiq.integration.calls.validation import BulkEntry
from celery_lowkiq.integration.tracking.tracker import Tracker
from celery_lowkiq.rules.errors import StoreFull, StoreUnavailable

from .base_classes import R
from .call_mixin import CallMixin

T = TypeVar("T")
TrackerOrId: TypeAlias = Tracker | str | None
#: A test may patch ``delay`` on Celery's class.
_OURS = {name: getattr(CallMixin, name) for name in ("delay", "apply_async", "perform_async")}


class AsyncCallMixin(CallMixin[R]):
    """Methods that make calls without blocking the event loop.

    Each does and raises what the method without ``a`` does. A push alone goes over connections of the event
    loop. A call that runs other code, too, such as receivers of signals, client middlewares, or an own
    ``apply_async``, is made by that method in a thread.
    """

    @overload
    async def adelay(self, id: str | int | UUID, payload: Any = "") -> AsyncResult[R]: ...

    @overload
    async def adelay(self, payload: Any) -> AsyncResult[R]: ...

    async def adelay(self, *args: Any, **kwargs: Any) -> AsyncResult[R]:
        """Store one call, as :meth:`delay`."""
        if self._has_own("delay"):
            return await self._make_call_async(partial(self.delay, *args, **kwargs))
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> AsyncResult[R]:
        """Store one call, as :meth:`apply_async`, with the same options."""
        if self._has_own("apply_async"):
            return await self._make_call_async(partial(self.apply_async, args, kwargs, task_id, **options))
        return await self._make_call_async(self._request(args, kwargs, task_id, on_loop=True, **options))

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
        if self._has_own("perform_async"):
            return await self._make_call_async(partial(self.perform_async, jobs, results, tracker))
        return await self._make_call_async(self._bulk_request(jobs, results, tracker))

    def _has_own(self, method: str) -> bool:
        """Whether a class of the user's, or a test, has put its own method in place of ours."""
        found = getattr(self, method)
        return getattr(found, "__func__", found) is not _OURS[method]

    async def _make_call_async(self, request: CallRequest[T]) -> T:
        """Do what is left of a checked call. Raises StoreError."""
        context = context_of(self._get_app())
        store = await context.loop_stores.current()
        if not isinstance(request, PushRequest) or context.settings.client_middlewares:
            call: Callable[[], T] = partial(self._make_call, request)
            return await store.in_thread(of_caller(partial(as_lazy, self, call)))
        try:
            if request.jobs:
                await store.push(self.queue_spec, request.jobs, request.intervals)
        except (StoreFull, StoreUnavailable) as error:
            raise as_celery_error(error) from error
        return request.result()
