"""The statement of docs/fencing.md, on SQLite: a former owner's late write changes nothing."""

from __future__ import annotations

import sqlite3

from tests.docs.test_docs import blocks


def test_a_late_write_of_a_former_owner_is_refused():
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, fence INTEGER)")
    (block,) = blocks("docs/fencing.md")
    names: dict = {"database": database}
    exec(block[block.index("def save(") :], names)
    save = names["save"]
    save("42", "new", fence=1795240107700)
    save("42", "paid", fence=1795240107700)
    save("42", "shipped", fence=1795240119001)
    save("42", "paid", fence=1795240107700)
    assert database.execute("SELECT status, fence FROM orders").fetchall() == [("shipped", 1795240119001)]
