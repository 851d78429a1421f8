"""Prometheus metrics of queues and nodes (extra ``metrics``)."""
