"""Messages between a lane and its child process, and their channel."""

from __future__ import annotations

import marshal
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_lowkiq.integration.result_writes import HeldResult
from celery_lowkiq.rules.models import (
    Batch,
    ClaimedCallRecords,
    Disposition,
    Flag,
    Job,
    Lease,
    Payload,
    QueueSpec,
    Recorded,
    Settlement,
    ShardRef,
    StoredRecord,
)
from celery_lowkiq.rules.policies import NOT_ISOLATED, Isolation

# One end of the socket between a lane and its child process: sends and receives whole messages.

_LENGTH = struct.Struct("!I")
#: Bytes to receive at once: most messages are smaller, and take one system call.
_CHUNK = 65536


class Channel:
    """A message is its length and its bytes.

    The kernel keeps the timeout: a wait is one system call, and gives up the interpreter's lock once.
    """

    def __init__(self, end: socket.socket, timeout: float) -> None:
        """``timeout``: seconds that :meth:`receive` waits."""
        self._socket = end
        self._received = bytearray()
        whole, part = divmod(timeout, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(whole), int(part * 1e6)))

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """Return the next message; None after the timeout. Raises EOFError and OSError."""
        while (message := self._whole()) is None:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return None
            if not chunk:
                raise EOFError
            self._received += chunk
        return message

    def _whole(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message

    def is_silent(self) -> bool:
        """True if the other end is open, and has sent nothing."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return not self._received
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


# Messages between a lane and its child process: plain values, written by ``marshal``.
#
# Rare values made of classes travel as a pickle inside of a message.

#: Kinds of messages to the child: run a batch, call on_retries_exhausted, end.
RUN, EXHAUSTED, END = range(3)
#: Kinds of messages of the child: it can run batches, an event, the outcome of a run, no outcome, and that it
#: has ended by itself, without the last batch that was sent to it. OUTCOME and FAILED name the run.
READY, EVENT, OUTCOME, FAILED, ENDED = range(5)

_RECORDED = {each.value: each for each in Recorded}
#: Settlement of a job that is done, and has nothing else to store, after its id and claim.
_ONLY_DONE = Settlement("", 0, Disposition.DONE)[2:]
#: Fields of a job that are made of classes.
_PAYLOADS, _CALLS, _ISOLATION = map(Job._fields.index, ("payloads", "calls", "isolation"))


class RunMessage(NamedTuple):
    """A batch to run, and what has changed since the last one."""

    kind: int
    #: Number of the run in this child.
    number: int
    queue: str
    #: Shard, owner, epoch and server of the lease.
    lease: tuple[int, str, int, str]
    #: The other fields of the batch, from ``claim`` on, without ``lost``.
    batch: tuple[Any, ...]
    is_lost: bool
    #: Groups of events that are sent; None: no events.
    events: tuple[str, ...] | None
    #: Ids of calls that were revoked.
    revoked: Sequence[str]
    #: A pickle of Celery's revoked stamps.
    stamps: bytes


class OutcomeMessage(NamedTuple):
    """Outcome of a batch."""

    kind: int
    #: Number of the run in this child.
    number: int
    #: True if the child ends now.
    is_spent: bool
    #: A pickle of settlements and dead jobs; empty when all jobs are done, and nothing else is to store.
    settlements: bytes = b""
    #: Key and value of the result to write before the settle, and the key of its call's record.
    held: tuple[bytes, Any, bytes] | None = None


def run_message(
    batch: Batch,
    number: int,
    events: tuple[str, ...] | None,
    revoked: Sequence[str],
    stamps: Mapping[str, Any],
) -> bytes:
    """Return the message that has the child run a batch."""
    lease, jobs = batch.lease, tuple([_plain_job(job) for job in batch.jobs])
    return write(
        RunMessage(
            RUN,
            number,
            batch.queue.name,
            (lease.shard.index, lease.owner, lease.epoch, lease.server),
            (batch.claim, jobs, batch.began_at, batch.claimed_at, batch.run_id, batch.suspect),
            batch.lost.is_set(),
            events,
            revoked,
            pickle.dumps(dict(stamps)) if stamps else b"",
        )
    )


def read_batch(message: RunMessage, queue: QueueSpec, lost: Flag) -> Batch:
    index, owner, epoch, server = message.lease
    claim, jobs, *rest = message.batch
    lease = Lease(ShardRef(queue.name, index), owner, epoch, server)
    return Batch(queue, lease, claim, tuple(map(_read_job, jobs)), lost, *rest)


def held_outcome(number: int, held: HeldResult, is_spent: bool) -> OutcomeMessage:
    """Return the message about a run whose result the lane writes."""
    (record, _), *_ = held.done[0].ended
    return OutcomeMessage(OUTCOME, number, is_spent, held=(*held.encoded, record))


def outcome(
    number: int, settlements: Sequence[Settlement], dead: Sequence[Any], is_spent: bool
) -> OutcomeMessage:
    """Return the message about a run whose result is not held back. Raises the errors of ``pickle``."""
    if not dead and all(each[2:] == _ONLY_DONE for each in settlements):
        return OutcomeMessage(OUTCOME, number, is_spent)
    return OutcomeMessage(OUTCOME, number, is_spent, pickle.dumps((tuple(settlements), list(dead))))


def read_settlements(message: OutcomeMessage, batch: Batch) -> tuple[tuple[Settlement, ...], list[Any]]:
    """Return the settlements of a batch, and its jobs that have died."""
    if message.settlements:
        # Written by a child of this process.
        settlements, dead = pickle.loads(message.settlements)  # noqa: S301
        return settlements, dead
    ended = ((message.held[2], message.held[2]),) if message.held else ()
    return tuple([Settlement(job.id, job.claim, Disposition.DONE, ended=ended) for job in batch.jobs]), []


def write(message: tuple[Any, ...]) -> bytes:
    return marshal.dumps(tuple(message))


def read(data: bytes) -> tuple[Any, ...]:
    """Return the fields of a message; the first is its kind."""
    # Written by the process at the other end of the pipe, of the same interpreter.
    message: tuple[Any, ...] = marshal.loads(data)  # noqa: S302
    return message


def _plain_job(job: Job) -> list[Any]:
    plain: list[Any] = list(job)
    plain[_PAYLOADS] = [
        (data, score, of.value, cut, signature) for data, score, of, cut, signature in job.payloads
    ]
    plain[_CALLS] = job.calls and (list(map(tuple, job.calls.records)), job.calls.complete)
    plain[_ISOLATION] = None if job.isolation is NOT_ISOLATED else tuple(job.isolation)
    return plain


def _read_job(plain: list[Any]) -> Job:
    payloads, calls, isolation = plain[_PAYLOADS], plain[_CALLS], plain[_ISOLATION]
    plain[_PAYLOADS] = tuple(
        [Payload(data, score, _RECORDED[of], cut, signature) for data, score, of, cut, signature in payloads]
    )
    plain[_CALLS] = calls and ClaimedCallRecords(tuple(map(StoredRecord._make, calls[0])), calls[1])
    plain[_ISOLATION] = Isolation(*isolation) if isolation else NOT_ISOLATED
    return Job._make(plain)
