"""A Redis Cluster with a replica of each master, whose nodes may be killed, frozen, added and removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import shard_keys
from tests.chaos.proxy import Proxy
from tests.clusters import CONFIG, SLOTS, Cluster, find_cluster_server
from tests.ports import BUS, free_port

#: Of a run; a node that is killed keeps what it acknowledged, and a replica may always be promoted.
OF_A_RUN = {
    "cluster-node-timeout": "1500",
    "cluster-replica-validity-factor": "0",
    "cluster-allow-replica-migration": "no",
    "appendonly": "yes",
    # "everysec" may hold back acknowledged writes in the process for 2 s.
    "appendfsync": "no",
    "auto-aof-rewrite-percentage": "0",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}
#: Bytes that a replica in sync may still have to read.
UNTOLD = 100_000


class Masters(Cluster):
    """Clients and replicas reach each node by a proxy of its own, under whose port the node is announced."""

    def __init__(self, masters: int = 3) -> None:
        super().__init__([])
        self._masters = masters
        self._lines: list[Proxy] = []
        self._removed: set[int] = set()

    def start(self) -> None:
        """Start all nodes."""
        for _ in range(2 * self._masters):
            self._add()
        self.create(self._masters)

    @property
    def url(self) -> str:
        """Of all first nodes, by their proxies."""
        ports = [line.port for line in self._lines[: 2 * self._masters]]
        return f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in ports)}"

    def line(self, number: int) -> Proxy:
        """The proxy of a node."""
        return self._lines[number]

    def _add(self) -> int:
        port = free_port()
        line = Proxy(("127.0.0.1", port))
        line.start()
        self._lines.append(line)
        announced = {"cluster-announce-port": str(line.port), "cluster-announce-bus-port": str(port + BUS)}
        config = {**CONFIG, **OF_A_RUN, **announced}
        server = EmbeddedServer(executable=find_cluster_server(), port=port, config=config)
        self.servers.append(server)
        server.start()
        number = len(self.servers) - 1
        self.living.add(number)
        return number

    def masters(self) -> list[int]:
        """Numbers of the nodes that have slots, as they say themselves."""
        return [number for number in sorted(self.living) if self.ranges(number)]

    def replica_of(self, master: int) -> int | None:
        """The number of the replica that follows a master and has all that it has been told."""
        name = self.id(master)
        for number in sorted(self.living - {master}):
            for about in self.ask(number, "CLUSTER NODES").values():
                if "myself" in about["flags"] and about["master_id"] == name:
                    return number if self._is_in_sync(number, master) else None
        return None

    def _is_in_sync(self, replica: int, master: int) -> bool:
        found = self.ask(replica, "INFO", "replication")
        told = self.ask(master, "INFO", "replication")["master_repl_offset"]
        # What was told meanwhile is on its way.
        return bool(found["master_link_status"] == "up" and found["slave_repl_offset"] >= told - UNTOLD)

    def is_whole(self) -> bool:
        """Whether all nodes answer, know the same masters, and each master has a replica in sync."""
        if len(self.living | self._removed) < len(self.servers):
            return False
        try:
            masters = self.masters()
            views = [self.ask(number, "CLUSTER INFO") for number in self.living]
            known = {(view["cluster_state"], view["cluster_slots_ok"]) for view in views}
            return known == {("ok", str(SLOTS))} and all(self.replica_of(n) is not None for n in masters)
        except redis.RedisError:
            return False

    # -- nodes

    def is_promoted(self, replica: int) -> bool:
        """Whether it has slots, and all other living nodes know that."""
        try:
            name = self.id(replica)
            views = [self.ask(number, "CLUSTER NODES").values() for number in self.living]
        except redis.RedisError:
            return False
        return bool(self.ranges(replica)) and all(
            any(about["node_id"] == name and about["slots"] for about in view) for view in views
        )

    def is_replica(self, number: int) -> bool:
        """Whether a node that was unreachable has found its new master."""
        try:
            return bool(self.ask(number, "ROLE")[0] == b"slave")
        except redis.RedisError:
            return False

    def move_all(self, slots: Sequence[int], source: int, target: int) -> None:
        """Move slots; the other nodes hear of it from these two."""
        self.agree_on_epoch()
        here, there = self.id(source), self.id(target)
        self._set_slots(target, slots, "IMPORTING", here)
        self._set_slots(source, slots, "MIGRATING", there)
        for slot in slots:
            self.move_keys(slot, source, target)
        for number in (target, source):
            self._set_slots(number, slots, "NODE", there)

    def _set_slots(self, number: int, slots: Sequence[int], *words: str) -> None:
        with self.node(number) as node, node.pipeline(transaction=False) as pipe:
            for slot in slots:
                pipe.execute_command("CLUSTER SETSLOT", slot, *words)
            pipe.execute()

    def cut_off(self, master: int) -> None:
        """Let the replica of a master follow no more, until the master starts again."""
        self.ask(master, "ACL", "SETUSER", "default", "-psync", "-sync")
        self.ask(master, "CLIENT", "KILL", "TYPE", "replica")

    def add_master(self) -> tuple[int, int]:
        """Add a master without slots, and its replica."""
        master, replica = self._add(), self._add()
        self.meet([master, replica])
        self.follow(replica, master)
        return master, replica

    def is_ready(self, number: int) -> bool:
        """Whether a node says that the cluster is well, which a new one does after a while."""
        return bool(self.ask(number, "CLUSTER INFO")["cluster_state"] == "ok")

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove nodes without slots."""
        for number in numbers:
            name = self.id(number)
            self.living.discard(number)
            self._removed.add(number)
            for other in self.living:
                self.ask(other, "CLUSTER FORGET", name)
            self.servers[number].stop()
            self._lines[number].stop()

    def stop(self) -> None:
        """End all, and remove their data."""
        for number, server in enumerate(self.servers):
            server.stop()
            if number not in self._removed:
                self._lines[number].stop()

    # -- shards

    def shards_on(self, number: int, queue: str, shards: int) -> list[int]:
        """Which of the first ``shards`` shards of a queue a node has."""
        ranges = self.ranges(number)
        return [n for n in range(shards) if any(a <= slot_of_shard(queue, n) <= b for a, b in ranges)]


def slot_of_shard(queue: str, index: int) -> int:
    """The slot of a shard."""
    return slot_of(shard_keys(ShardRef(queue, index))["meta"])
