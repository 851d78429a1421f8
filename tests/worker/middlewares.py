"""Middlewares that tests name by their dotted paths."""

from __future__ import annotations

from tests.worker.proj import note

pushed: list = []


def outer(task, batch, call):
    note("outer")
    call()
    note("after outer")


def inner(task, batch, call):
    note("inner", ids=[job.id for job in batch])
    call()
    note("after inner")


def client(task, batch, call):
    pushed.extend((task.name, entry.id, entry.payload) for entry in batch)
    call()


def ends(task, batch, call):
    try:
        return call()
    finally:
        note("around", id=batch[0].id)
