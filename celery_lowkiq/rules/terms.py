"""Words of the glossary that pages explain where they stand."""

from __future__ import annotations

#: Word and meaning, as in `docs/glossary.md`; a test compares them.
TERMS = {
    "ordered queue": "the jobs of one ordered task in Redis, divided into shards; its name is the task's "
    "name unless `queue_name` sets it",
    "shard": "one of the numbered parts of an ordered queue; an id belongs to shard `crc32(id) % shards`",
    "id": "the key whose calls stay in order, such as an order number",
    "payload": "the data that one call carries; equal payloads of a job are one payload",
    "merge": "the union of payloads when a call, a failed job or a dead job meets a waiting job of its id",
    "score": "the number that orders the payloads of a job; by default the time of arrival",
    "perform_in": "the time, as a Unix timestamp, from which a job is due",
    "due": "waiting, with `perform_in` in the past",
    "scheduled": "waiting, with `perform_in` in the future",
    "priority": "a number from 0 (most urgent) to 9 that orders the due jobs of a shard",
    "waiting": "in the queue, due or not",
    "fresh": "waiting, and never failed",
    "retry": "waiting, and failed before",
    "failing": "waiting, and failed before",
    "processing": "claimed and not yet settled",
    "busy": "claimed and not yet settled",
    "morgue": "the dead payloads of a queue, by id, with their last error",
    "dead": "in the morgue",
    "fingerprint": "what failures of a group share: the type of error, its message without "
    "numbers and ids, and the place in your code",
    "paused": "not to be claimed: a queue, a shard or an id, until an operator resumes it",
    "held": 'not to be claimed while a payload of the id is dead, with `on_death="hold"` or after `hold`',
    "throughput": "jobs processed in a second, over the last minute or since the first report",
    "lag": "how long the oldest claimable job is due; 0 without one",
    "damaged": "with a key that is missing or has a wrong type: said of a shard",
    "masked": "with `[redacted]` in place of secrets, as `lowkiq_redact` says",
    "batch": "the jobs that one run gets: `{id: [payload, ...]}`",
    "run": "one call of the task's function with a batch",
    "try": "one failed run of a job, in its log of the last ten",
    "node": "one worker process that serves ordered queues",
    "lane": "a thread of a node, with a fixed part of its shards; one run at a time",
    "owner": "the node whose lease covers a shard",
    "lease": "the right of one node to one shard; its owner renews a counter in it",
    "silent": "without a report for longer than its lease time: said of a node",
    "unserved": "without a living owner of any shard: said of a queue",
    "quiet": "finishing runs and starting none: said of a node",
    "resharding": "the move of a queue's jobs to another number of shards",
}


class Terms:
    """The words that a page explains; ``used``: by the name of an explanation, its words and meanings."""

    def __init__(self) -> None:
        self.used: dict[str, list[tuple[str, str]]] = {}

    def use(self, *words: str) -> str:
        """Add an explanation of words, and return its name."""
        name = "-".join(("term", *words)).replace(" ", "-")
        self.used[name] = [(word, TERMS[word]) for word in words]
        return name
