"""The statement of docs/fencing.md, on real databases: a former owner's late write changes nothing."""

from __future__ import annotations

import os
import re
import sqlite3

import pytest

from tests.docs.test_docs import blocks

POSTGRESQL = os.environ.get("LOWKIQ_TEST_POSTGRESQL_URL")


def late_writes(database):
    (block,) = blocks("docs/fencing.md")
    names: dict = {"database": database}
    exec(block[block.index("def save(") :], names)
    save = names["save"]
    save("42", "new", fence=1795240107700)
    save("42", "paid", fence=1795240107700)
    save("42", "shipped", fence=1795240119001)
    save("42", "paid", fence=1795240107700)


def test_a_late_write_of_a_former_owner_is_refused():
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, fence INTEGER)")
    late_writes(database)
    assert database.execute("SELECT status, fence FROM orders").fetchall() == [("shipped", 1795240119001)]


@pytest.mark.skipif(POSTGRESQL is None, reason="LOWKIQ_TEST_POSTGRESQL_URL names no server")
def test_the_same_on_postgresql():
    psycopg = pytest.importorskip("psycopg")

    class Database:
        """Writes a statement's parameters as psycopg wants them."""

        def execute(self, statement, values):
            connection.execute(re.sub(r":(\w+)", r"%(\1)s", statement), values)

    with psycopg.connect(POSTGRESQL, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id text PRIMARY KEY, status text, fence bigint)")
        late_writes(Database())
        found = connection.execute("SELECT status, fence FROM orders").fetchall()
    assert found == [("shipped", 1795240119001)]
