"""The database behind the sites: built once from seeded data, copied for every episode."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 3, 2, 9, 0)  # when every episode begins, so that pages show the same times whenever they run
_SCHEMA = Path(__file__).with_name("schema.sql")


class Database:
    """An SQLite database in memory, with a clock of its own.

    One thread at a time may use it: hold `lock`.

    Args:
        image: a serialized database to begin with; None makes the empty tables.
    """

    def __init__(self, image: bytes | None = None) -> None:
        self.lock = threading.Lock()
        self.error: str | None = None  # why a page failed, if one did
        # A page is answered by whichever thread takes the connection.
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        if image is None:
            self._connection.executescript(_SCHEMA.read_text(encoding="utf-8"))
        else:
            self._connection.deserialize(image)

    def all(self, sql: str, *args: Any) -> list[sqlite3.Row]:
        return self._connection.execute(sql, args).fetchall()

    def first(self, sql: str, *args: Any) -> sqlite3.Row | None:
        return self._connection.execute(sql, args).fetchone()

    def value(self, sql: str, *args: Any) -> Any:
        """Return the first column of the first row; None where there is no row."""
        row = self.first(sql, *args)
        return None if row is None else row[0]

    def run(self, sql: str, *args: Any) -> int:
        """Run a statement that changes rows and return the id of the last one that it inserted."""
        return self._connection.execute(sql, args).lastrowid or 0

    def insert(self, table: str, **columns: Any) -> int:
        """Insert a row and return its id; names come from our own code, values from anywhere."""
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        return self.run(f"INSERT INTO {table} ({names}) VALUES ({marks})", *columns.values())

    def insert_all(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def now(self) -> str:
        """Return the time, like "2026-03-02 09:05"; a minute passes with every call."""
        minutes = self.value("UPDATE clock SET minutes = minutes + 1 RETURNING minutes")
        return (START + timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M")

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def image(self) -> bytes:
        self.commit()
        return self._connection.serialize()

    def close(self) -> None:
        with self.lock:
            self._connection.close()
