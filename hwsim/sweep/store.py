"""Store: finished points in one SQLite file. What is in it survives whatever happens to the process that wrote it.

Every point is one transaction. The file is in WAL mode, so that several processes may write and read at the same time.
A result holds no times of day and no durations: a sweep that was interrupted and resumed leaves the same bytes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from hwsim.errors import InputError
from hwsim.sweep.point import Point
from hwsim.sweep.request import Request
from hwsim.sweep.version import model_version

FORMAT = 1
APPLICATION = 0x68777369
"""Tells a sweep store from any other SQLite file: the letters `hwsi`."""

MEMORY = ":memory:"

Status = Literal["done", "failed", "lost"]
"""Computed; refused by the model, and will be again; its worker died, and it may be tried again."""

_WAIT_MS = 60_000

_TABLES = """
CREATE TABLE machines (key TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE points (
    key TEXT PRIMARY KEY, status TEXT NOT NULL, machine TEXT, result BLOB, error TEXT
) WITHOUT ROWID;
CREATE TABLE sweeps (id INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, model TEXT NOT NULL);
CREATE TABLE members (
    sweep INTEGER NOT NULL, position INTEGER NOT NULL, key TEXT NOT NULL, PRIMARY KEY (sweep, position)
) WITHOUT ROWID;
"""


class StoreError(InputError):
    """A store that cannot be opened, read or written."""


@dataclass(frozen=True)
class Stored:
    """What the store has about a point."""

    status: Status
    result: str | None
    """JSON text of the result, whole: with its machine."""
    error: str | None


class Store:
    """An open store; use it in a `with`, or close it."""

    def __init__(self, path: Path | str, *, write: bool = True, check: bool = True) -> None:
        self.path = Path(path)
        self.name = str(path)
        self.writes = write
        self.closed = False
        self._machines: dict[str, str] = {}
        with self._explained("opened"):
            self._db = self._open()
            self._check_kind()
            if write and self._pragma("user_version") == 0:
                self._create()
            if check:
                self._check_health()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self.closed = True

    def for_reading(self) -> Store:
        """This store while it is open; the file opened again, for reading only, when it is not."""
        return Store(self.path, write=False, check=False) if self.closed else self

    # Writing --------------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> int:
        """The number of a sweep; the same request has the same number."""
        text = request.to_json()
        with self._explained("written"), self._transaction():
            self._db.execute("INSERT OR IGNORE INTO sweeps (request, model) VALUES (?, ?)", (text, model_version()))
            row = self._db.execute("SELECT id, model FROM sweeps WHERE request = ?", (text,)).fetchone()
            if row[1] != model_version():
                self._db.execute("UPDATE sweeps SET model = ? WHERE id = ?", (model_version(), row[0]))
                self._db.execute("DELETE FROM members WHERE sweep = ?", (row[0],))
        return int(row[0])

    def finish(self, sweep: int, point: Point, status: Status, result: str | None, error: str | None) -> None:
        """Keep one point. A result that is already there stays: it is the same."""
        blob = None if result is None else _packed(result)
        machine = None if point.job is None else point.job.machine_key
        with self._explained("written"), self._transaction():
            if point.job is not None and machine not in self._machines:
                packed = (machine, _packed(point.job.described))
                self._db.execute("INSERT OR IGNORE INTO machines (key, data) VALUES (?, ?)", packed)
            self._db.execute(
                "INSERT INTO points (key, status, machine, result, error) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET status = excluded.status, result = excluded.result, "
                "error = excluded.error WHERE points.status != 'done'",
                (point.key, status, machine, blob, error),
            )
            self._join(sweep, point)
        if point.job is not None and machine is not None:
            self._machines[machine] = point.job.described

    def reuse(self, sweep: int, points: list[Point]) -> None:
        """Points that are already here belong to this sweep as well."""
        with self._explained("written"), self._transaction():
            for point in points:
                self._join(sweep, point)

    def _join(self, sweep: int, point: Point) -> None:
        row = (sweep, point.position, point.key)
        self._db.execute("INSERT OR REPLACE INTO members (sweep, position, key) VALUES (?, ?, ?)", row)

    # Reading --------------------------------------------------------------------------------------------------------

    def status(self, key: str) -> Status | None:
        with self._explained("read"):
            row = self._db.execute("SELECT status FROM points WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def get(self, key: str) -> Stored | None:
        with self._explained("read"):
            row = self._db.execute("SELECT status, machine, result, error FROM points WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            return Stored(row[0], None if row[2] is None else self._whole(key, row[1], row[2]), row[3])

    def sweeps(self) -> list[tuple[int, Request, str, int]]:
        """Every sweep: its number, what was asked, the model it ran with, and how many points it has."""
        with self._explained("read"):
            rows = self._db.execute(
                "SELECT id, request, model, (SELECT count(*) FROM members WHERE sweep = id) FROM sweeps ORDER BY id"
            ).fetchall()
        return [(row[0], Request.from_json(row[1]), row[2], row[3]) for row in rows]

    def members(self, sweep: int) -> dict[int, str]:
        """The key of every point that a sweep has so far, by its position in the grid."""
        with self._explained("read"):
            rows = self._db.execute("SELECT position, key FROM members WHERE sweep = ? ORDER BY position", (sweep,))
            return dict(rows.fetchall())

    def count(self) -> int:
        with self._explained("read"):
            return int(self._db.execute("SELECT count(*) FROM points").fetchone()[0])

    def digest(self) -> dict[str, tuple[str, str | None, str | None]]:
        """Every point as it is kept, by key: for comparing two stores byte for byte."""
        with self._explained("read"):
            keys = [row[0] for row in self._db.execute("SELECT key FROM points ORDER BY key").fetchall()]
        found = {key: self.get(key) for key in keys}
        return {key: (each.status, each.result, each.error) for key, each in found.items() if each is not None}

    def _whole(self, key: str, machine: str, blob: bytes) -> str:
        """A result with its machine back in place."""
        data = json.loads(_unpacked(blob))
        if machine not in self._machines:
            row = self._db.execute("SELECT data FROM machines WHERE key = ?", (machine,)).fetchone()
            if row is None:
                raise StoreError(f"{self.name} is damaged: the machine of point {key} is missing")
            self._machines[machine] = _unpacked(row[0])
        if "machine" not in data["resolved"]:
            data["resolved"] = {"machine": json.loads(self._machines[machine]), **data["resolved"]}
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    # Opening --------------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self.name == MEMORY:
            return self._connect(MEMORY)
        if self.path.is_dir():
            raise StoreError(f"{self.name} is a folder; a store is a file, such as sweep.db")
        if not self.writes:
            if not self.path.is_file():
                raise StoreError(f"there is no file {self.name}")
            plain = os.access(self.path.parent, os.W_OK)
            return self._connect(f"{self.path.resolve().as_uri()}?mode=ro{'' if plain else '&immutable=1'}")
        if not self.path.parent.is_dir():
            raise StoreError(f"{self.name}: there is no folder {self.path.parent}")
        return self._connect(self.path.resolve().as_uri())

    def _connect(self, place: str) -> sqlite3.Connection:
        db = sqlite3.connect(place, uri=place != MEMORY, isolation_level=None, timeout=_WAIT_MS / 1000)
        if self.writes and place != MEMORY:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
        return db

    def _create(self) -> None:
        """Make the tables, unless another process has made them meanwhile."""
        with self._transaction():
            if self._pragma("user_version") == 0:
                for statement in _TABLES.strip().split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {FORMAT}")

    def _check_kind(self) -> None:
        """Raises StoreError for a file that is no store, or one of another format."""
        version, kind = self._pragma("user_version"), self._pragma("application_id")
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if kind != APPLICATION and (tables or version or not self.writes):
            raise StoreError(f"{self.name} is not a sweep of hwsim; choose another file with --out")
        if version not in (0, FORMAT):
            raise StoreError(
                f"{self.name} has store format {version}, and this hwsim writes format {FORMAT}; "
                "nothing was changed: choose another file with --out, or read it with the hwsim that wrote it"
            )

    def _check_health(self) -> None:
        found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreError(self._damaged(found))

    def check_model(self) -> None:
        """Raises StoreError where the store holds points of another model, which would not be reused."""
        with self._explained("read"):
            rows = self._db.execute("SELECT DISTINCT model FROM sweeps ORDER BY model").fetchall()
        others = [row[0] for row in rows if row[0] != model_version()]
        if others:
            raise StoreError(
                f"{self.name} holds points of model {', '.join(others)}, and this is model {model_version()}: "
                "numbers of two models do not belong into one sweep; choose another file with --out "
                "(hwsim export still reads this one)"
            )

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """SQLite's errors in plain words."""
        try:
            yield
        except (sqlite3.Error, zlib.error, ValueError) as error:
            raise StoreError(self._words(error, doing)) from error

    def _words(self, error: Exception, doing: str) -> str:
        code = getattr(error, "sqlite_errorname", "") or ""
        kept = "what was finished is kept, and the same command goes on from there"
        if code.startswith("SQLITE_FULL"):
            return f"{self.name}: the disk is full; {kept} once there is room"
        if code.startswith("SQLITE_IOERR"):
            return f"{self.name}: the disk does not answer, or is full ({error}); {kept}"
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return f"{self.name} cannot be {doing}: the file or its folder is read-only; choose another with --out"
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return f"{self.name}: another process has held it for a minute; {kept}"
        if code.startswith("SQLITE_NOTADB"):
            return f"{self.name} is not a sweep of hwsim; choose another file with --out"
        if code.startswith("SQLITE_CORRUPT") or not isinstance(error, sqlite3.Error):
            return self._damaged(str(error))
        return f"{self.name} cannot be {doing}: {error}"

    def _damaged(self, reason: str) -> str:
        return (
            f"{self.name} is damaged ({reason}); nothing was changed: move it away and run the sweep again, "
            "or try SQLite's own .recover on a copy"
        )


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 6)


def _unpacked(blob: bytes) -> str:
    return zlib.decompress(blob).decode()


def as_data(stored: Stored) -> dict[str, Any]:
    """A result as plain data; empty for a point that has none."""
    return {} if stored.result is None else dict(json.loads(stored.result))
