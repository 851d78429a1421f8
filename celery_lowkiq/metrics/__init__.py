"""Prometheus: what queues hold and what a node does (extra ``metrics``)."""
