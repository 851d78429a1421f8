"""A cluster that the tests of the store take for one server: ``nox -s cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.cluster import ClusterNode, RedisCluster

from celery_lowkiq.store.cluster_map import ClusterMap
from celery_lowkiq.store.connect import connect_cluster
from tests.clusters import Cluster


class ClusterAsServer(ClusterMap):
    """What ``RedisStore`` takes, and the commands that tests send of their own, on all masters."""

    def __init__(self, cluster: Cluster) -> None:
        made = connect_cluster({"cluster": cluster.addresses}, pool_size=8, pool_timeout=5)
        vars(self).update(vars(made))
        self.raw = RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in cluster.addresses], protocol=2
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def __enter__(self) -> ClusterAsServer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def execute_command(self, *words: Any, **options: Any) -> Any:
        return self.raw.execute_command(*words, **options)

    def flushall(self) -> None:
        self.raw.flushall(target_nodes=RedisCluster.PRIMARIES)

    def config_set(self, *words: Any) -> None:
        self.raw.config_set(*words, target_nodes=RedisCluster.PRIMARIES)

    def config_resetstat(self) -> None:
        self.raw.config_resetstat(target_nodes=RedisCluster.PRIMARIES)

    def keys(self, pattern: str = "*") -> list[bytes]:
        return list(self.scan_iter(pattern))

    def scan_iter(self, match: str = "*", **options: Any) -> Iterator[bytes]:
        yield from self.raw.scan_iter(match, target_nodes=RedisCluster.PRIMARIES, **options)

    def time(self) -> Any:
        return self.raw.time(target_nodes=self.raw.get_primaries()[0])

    def info(self, section: str = "server") -> dict[str, Any]:
        """The counts of commands are those of all masters; all else is that of one."""
        answers = [self.raw.info(section, target_nodes=node) for node in self.raw.get_primaries()]
        if section != "commandstats":
            return dict(answers[0])
        found: dict[str, Any] = {}
        for name, counts in (item for answer in answers for item in answer.items()):
            known = found.setdefault(name, {})
            for field, value in counts.items():
                known[field] = known.get(field, 0) + value
        return found

    def close(self) -> None:
        super().close()
        self.raw.close()
