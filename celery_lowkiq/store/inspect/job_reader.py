"""Jobs as listings show them: the beginning of what they have, read without a change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_lowkiq.rules.models import Job
from celery_lowkiq.rules.views import DeadJob
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import MORGUE_KEYS, WAITING_KEYS, KeyAliases, shard_keys
from celery_lowkiq.store.scripts.records import parse_id, parse_payloads, parse_retry_count
from celery_lowkiq.store.scripts.script import load

from .pages import Member

#: What a listing reads of one job's payloads, in bytes (at least one payload).
PEEK_BYTES = 256 * 1024


class JobReader:
    """Reads jobs by their ids, None where one is not there any more. Every method may raise StoreError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def waiting(self, members: Iterable[Member], payload_limit: int, cut: int) -> list[Job | None]:
        """Each with at most so many payloads, of which those of more than ``cut`` bytes are cut."""
        found = list(members)
        replies = self._read_jobs(found, WAITING_KEYS, payload_limit, cut)
        return [_job(member, reply) for member, reply in zip(found, replies, strict=True)]

    def dead(self, members: Iterable[Member], payload_limit: int, cut: int) -> list[DeadJob | None]:
        """As :meth:`waiting`, of the morgue."""
        found = list(members)
        replies = self._read_jobs(found, MORGUE_KEYS, payload_limit, cut)
        return [_dead_job(member, reply) for member, reply in zip(found, replies, strict=True)]

    def _read_jobs(
        self, members: list[Member], names: dict[str, str], payload_limit: int, cut: int
    ) -> list[list[Any]]:
        calls = [
            load("peek").call(
                KeyAliases(shard_keys(member.shard), names),
                [member.id],
                limit=payload_limit,
                max_bytes=PEEK_BYTES,
                cut=cut,
            )
            for member in members
        ]
        return [reply[0] for reply in self._client.all(calls)]


def _job(member: Member, reply: list[Any]) -> Job | None:
    perform_in, tried, error, count, paused, priority, *payloads = reply
    if not perform_in:
        return None
    retry_count, isolation = parse_retry_count(tried)
    return Job(
        id=parse_id(member.id),
        payloads=parse_payloads(payloads),
        perform_in=float(perform_in),
        retry_count=retry_count,
        error=error or None,
        payload_count=count,
        paused=bool(paused),
        priority=priority,
        isolation=isolation,
    )


def _dead_job(member: Member, reply: list[Any]) -> DeadJob | None:
    updated_at, _, error, count, _, _, *payloads = reply
    if not updated_at:
        return None
    return DeadJob(parse_id(member.id), parse_payloads(payloads), float(updated_at), error or None, count)
