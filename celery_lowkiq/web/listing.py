"""The listings of a queue, and the query of one page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.rules.job_filter import ANY, DEAD_STATES, WAITING_STATES, FailureFilter
from celery_lowkiq.rules.views import SearchPage

from .endpoints import DEFAULT_LIMIT, MAX_LIMIT
from .params import Params

#: Payloads of each job that a listing reads, and bytes of each payload.
LISTED = {"payload_limit": 3, "payload_bytes": 2048}
#: Sort keys of each listing; the first is the default.
SORTS: dict[str, tuple[str, ...]] = {
    "jobs": ("perform_in", "id"),
    "retries": ("retry_count",),
    "morgue": ("updated_at", "id"),
    "processing": ("claim",),
}
#: States that a listing filters by.
STATES: dict[str, tuple[str, ...]] = {
    "jobs": WAITING_STATES,
    "retries": WAITING_STATES,
    "morgue": DEAD_STATES,
    "processing": (),
}
#: Ages that a page offers.
AGES = ("<1min", "<1h", "<1d", ">1min", ">1h", ">1d", ">7d")
#: Listings whose jobs a filter of failures may match.
MATCHED = ("morgue", "retries")


@dataclass(frozen=True)
class ListingQuery:
    """The query of one page of a listing."""

    listing: str
    by: str
    wanted: FailureFilter
    minimum: float | None
    maximum: float | None
    reverse: bool
    limit: int
    after: str | None
    #: Entries that the pages before have searched.
    searched: int

    @classmethod
    def of(cls, params: Params, listing: str) -> ListingQuery:
        """Raises InvalidCall."""
        sorts = SORTS[listing]
        return cls(
            listing=listing,
            by=params.choice("by", ("", *sorts), "") or sorts[0],
            minimum=params.number("minimum"),
            maximum=params.number("maximum"),
            reverse=params.flag("reverse"),
            limit=params.whole("limit", 1, MAX_LIMIT, DEFAULT_LIMIT),
            after=params.cursor(),
            wanted=FailureFilter(
                prefix=params.text("prefix", ""),
                state=params.choice("state", ("", *STATES[listing]), ""),
                age=params.text("age", ""),
                failure=params.text("failure", ""),
            ),
            searched=params.whole("searched", 0, 10**9 - 1, 0),
        )

    @property
    def sorts(self) -> tuple[str, ...]:
        return SORTS[self.listing]

    @property
    def query(self) -> dict[str, Any]:
        """The fields of the URL query, without the cursor."""
        return {
            "list": self.listing,
            "by": self.by if self.by != self.sorts[0] else None,
            "prefix": self.wanted.prefix,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "reverse": "1" if self.reverse else None,
            "limit": self.limit if self.limit != DEFAULT_LIMIT else None,
            **self.filters,
        }

    @property
    def filters(self) -> dict[str, str]:
        """The filters that no sort has."""
        return {"state": self.wanted.state, "age": self.wanted.age, "failure": self.wanted.failure}

    @property
    def narrows(self) -> bool:
        """Whether the listing leaves jobs out."""
        return self.wanted != ANY or self.has_range

    @property
    def has_range(self) -> bool:
        """Whether it is between two values of the sort, which no action takes."""
        return (self.minimum, self.maximum) != (None, None)

    @property
    def is_sorted(self) -> bool:
        """Whether the order or the range was chosen."""
        return self.by != self.sorts[0] or self.reverse or self.has_range

    @property
    def is_filtered(self) -> bool:
        """Whether anything of the form was chosen."""
        return self.wanted != ANY or self.is_sorted

    def of_queue(self, queue: OrderedQueue) -> SearchPage[Any]:
        """Raises InvalidCall and StoreError."""
        if self.listing == "processing":
            return queue.processing(limit=self.limit, after=self.after, **LISTED)
        options = {
            "prefix": self.wanted.prefix,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "reverse": self.reverse,
            "limit": self.limit,
            "after": self.after,
            **self.filters,
        }
        reads = queue.morgue if self.listing == "morgue" else queue.jobs
        return reads(self.by, **options, **LISTED)
