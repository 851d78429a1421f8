"""Ordered queues in Flower: a tab of its own (extra ``flower``)."""

from __future__ import annotations

from celery_lowkiq.flower.tab import install

__all__ = ["install"]
