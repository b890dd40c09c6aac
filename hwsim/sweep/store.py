"""Store: finished points in one SQLite file. What is in it survives whatever happens to the process that wrote it.

Every point is one transaction. The file is in WAL mode, so that several processes may write and read at the same time.
A result holds no times of day and no durations: a sweep that was interrupted and resumed leaves the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from hwsim.errors import InputError
from hwsim.files import note_input
from hwsim.sweep.grid import SweepRequest
from hwsim.sweep.point import Point, model_version

FORMAT = 1
APPLICATION = 0x68777369
"""Tells a sweep store from any other SQLite file: the letters `hwsi`."""

MEMORY = ":memory:"

Status = Literal["done", "failed", "lost"]
"""Computed; refused by the model, and will be again; lost to a passing fault (a worker that died, a file that was not
there, a full disk, a mistake of ours), and tried again when the sweep is asked for again."""

STATUSES: tuple[Status, ...] = ("done", "failed", "lost")

_WAIT_MS = 60_000
_TIGHT = (",", ":")

_TABLES = """
CREATE TABLE machines (key TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE points (
    key TEXT PRIMARY KEY, status TEXT NOT NULL, machine TEXT, result BLOB, error TEXT, mark TEXT
) WITHOUT ROWID;
CREATE TABLE sweeps (id INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, model TEXT NOT NULL, mark TEXT);
CREATE TABLE members (
    sweep INTEGER NOT NULL, position INTEGER NOT NULL, key TEXT NOT NULL, mark TEXT, PRIMARY KEY (sweep, position)
) WITHOUT ROWID;
"""

_MARKED = ("points", "sweeps", "members")
"""Tables whose rows carry a digest of themselves: SQLite notices when its pages are torn, not when a letter changed."""


class StoreError(InputError):
    """A store that cannot be opened, read or written."""


@dataclass(frozen=True)
class Stored:
    """What the store has about a point."""

    status: Status
    data: dict[str, Any] | None
    """The result as plain data, whole: with its machine, which points share."""
    error: str | None

    @property
    def result(self) -> str | None:
        """The same as JSON text."""
        return (
            None if self.data is None else json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=_TIGHT)
        )


class ResultStore:
    """An open store; use it in a `with`, or close it."""

    def __init__(self, path: Path | str, *, write: bool = True, check: bool = True) -> None:
        self.path = Path(path)
        self.name = str(path)
        self.writes = write
        self.closed = False
        self._machines: set[str] = set()
        """Those that this process has put into the store, by key."""
        self._described: dict[str, dict[str, Any]] = {}
        """Those that it has read."""
        self._marks = True
        if self.name != MEMORY:
            for ending in ("", "-wal", "-shm", "-journal"):
                note_input(f"{self.name}{ending}")
        with self._explained("opened"):
            self._db = self._open()
            self._check_kind()
            if write and self._pragma("user_version") == 0:
                self._create()
            if check:
                self._check_health()
            self._add_marks()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self.closed = True

    def for_reading(self) -> ResultStore:
        """This store while it is open; the file opened again, for reading only, when it is not."""
        return ResultStore(self.path, write=False, check=False) if self.closed else self

    # Writing --------------------------------------------------------------------------------------------------------

    def begin(self, request: SweepRequest) -> int:
        """The number of a sweep; the same request has the same number."""
        text = request.to_json()
        with self._explained("written"), self._transaction():
            model = model_version()
            new = (text, model, _mark(text, model))
            self._db.execute("INSERT OR IGNORE INTO sweeps (request, model, mark) VALUES (?, ?, ?)", new)
            row = self._db.execute("SELECT id, model FROM sweeps WHERE request = ?", (text,)).fetchone()
            if row[1] != model:
                changed = (model, _mark(text, model), row[0])
                self._db.execute("UPDATE sweeps SET model = ?, mark = ? WHERE id = ?", changed)
                self._db.execute("DELETE FROM members WHERE sweep = ?", (row[0],))
        return int(row[0])

    def finish(self, sweep: int, point: Point, status: Status, result: str | None, error: str | None) -> None:
        """Keep one point. A result that is already there stays: it is the same."""
        blob = None if result is None else _packed(result)
        machine = None if point.inputs is None else point.inputs.machine_key
        with self._explained("written"), self._transaction():
            if point.inputs is not None and machine not in self._machines:
                packed = (machine, _packed(point.inputs.described))
                self._db.execute("INSERT OR IGNORE INTO machines (key, data) VALUES (?, ?)", packed)
            self._db.execute(
                "INSERT INTO points (key, status, machine, result, error, mark) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET status = excluded.status, machine = excluded.machine, "
                "result = excluded.result, error = excluded.error, mark = excluded.mark WHERE points.status != 'done'",
                (point.key, status, machine, blob, error, _mark(point.key, status, machine, blob, error)),
            )
            self._join(sweep, point)
        if machine is not None:
            self._machines.add(machine)

    def reuse(self, sweep: int, points: list[Point]) -> None:
        """Points that are already here belong to this sweep as well."""
        with self._explained("written"), self._transaction():
            for point in points:
                self._join(sweep, point)

    def _join(self, sweep: int, point: Point) -> None:
        """Put a point into its place; what was lost there before, under another key, is forgotten."""
        place = (sweep, point.position)
        before = self._db.execute("SELECT key FROM members WHERE sweep = ? AND position = ?", place).fetchone()
        row = (*place, point.key, _mark(*place, point.key))
        self._db.execute("INSERT OR REPLACE INTO members (sweep, position, key, mark) VALUES (?, ?, ?, ?)", row)
        if before is not None and before[0] != point.key:
            self._db.execute(
                "DELETE FROM points WHERE key = ? AND status = 'lost' "
                "AND NOT EXISTS (SELECT 1 FROM members WHERE members.key = points.key)",
                before,
            )

    # Reading --------------------------------------------------------------------------------------------------------

    def status(self, key: str) -> Status | None:
        with self._explained("read"):
            row = self._db.execute("SELECT status FROM points WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def get(self, key: str) -> Stored | None:
        with self._explained("read"):
            columns = f"status, machine, result, error, {self._mark_column}"
            row = self._db.execute(f"SELECT {columns} FROM points WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            self._check_mark(f"point {key}", row[4], key, *row[:4])
            if row[0] not in STATUSES:
                raise StoreError(self._damaged(f"point {key} has no state that is known"))
            return Stored(row[0], None if row[2] is None else self._whole(key, row[1], row[2]), row[3])

    def need(self, key: str) -> Stored:
        """A point that a sweep has. Raises StoreError where it is missing."""
        stored = self.get(key)
        if stored is None:
            raise StoreError(self._damaged(f"point {key} is missing"))
        return stored

    def sweeps(self) -> list[tuple[int, SweepRequest, str, int]]:
        """Every sweep: its number, what was asked, the model it ran with, and how many points it has."""
        with self._explained("read"):
            rows = self._db.execute(
                "SELECT id, request, model, (SELECT count(*) FROM members WHERE sweep = id), "
                f"{self._mark_column} FROM sweeps ORDER BY id"
            ).fetchall()
            found = []
            for row in rows:
                self._check_mark(f"sweep {row[0]}", row[4], row[1], row[2])
                found.append((row[0], SweepRequest.from_json(row[1]), row[2], row[3]))
        return found

    def members(self, sweep: int) -> dict[int, str]:
        """The key of every point that a sweep has so far, by its position in the grid."""
        with self._explained("read"):
            query = f"SELECT position, key, {self._mark_column} FROM members WHERE sweep = ? ORDER BY position"
            rows = self._db.execute(query, (sweep,)).fetchall()
            for position, key, mark in rows:
                self._check_mark(f"place {position} of sweep {sweep}", mark, sweep, position, key)
            return {row[0]: row[1] for row in rows}

    def count(self) -> int:
        with self._explained("read"):
            return int(self._db.execute("SELECT count(*) FROM points").fetchone()[0])

    def digest(self) -> dict[str, tuple[str, str | None, str | None]]:
        """Every point as it is kept, by key: for comparing two stores byte for byte."""
        with self._explained("read"):
            keys = [row[0] for row in self._db.execute("SELECT key FROM points ORDER BY key").fetchall()]
        found = {key: self.get(key) for key in keys}
        return {key: (each.status, each.result, each.error) for key, each in found.items() if each is not None}

    def _whole(self, key: str, machine: str, blob: bytes) -> dict[str, Any]:
        """A result with its machine back in place."""
        data: dict[str, Any] = json.loads(_unpacked(blob))
        if machine not in self._described:
            row = self._db.execute("SELECT data FROM machines WHERE key = ?", (machine,)).fetchone()
            if row is None:
                raise StoreError(self._damaged(f"the machine of point {key} is missing"))
            self._described[machine] = json.loads(_unpacked(row[0]))
        if "machine" not in data["resolved"]:
            data["resolved"] = {"machine": self._described[machine], **data["resolved"]}
        return data

    # Opening --------------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self.name == MEMORY:
            return self._connect(MEMORY)
        if self.path.is_dir():
            raise StoreError(f"{self.name} is a folder; a store is a file, such as sweep.db")
        if not self.writes:
            if not self.path.is_file():
                raise StoreError(f"there is no file {self.name}")
            return self._open_to_read()
        if not self.path.parent.is_dir():
            raise StoreError(f"{self.name}: there is no folder {self.path.parent}")
        return self._connect(self.path.resolve().as_uri())

    def _open_to_read(self) -> sqlite3.Connection:
        """A folder that cannot be written has no room for what SQLite keeps beside a store while it is read. Without a
        log beside the store nobody can be writing, and none is needed; with one, the last points are only there."""
        place = f"{self.path.resolve().as_uri()}?mode=ro"
        db = self._connect(place)
        try:
            db.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            if not (error.sqlite_errorname or "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
            log = Path(f"{self.path.resolve()}-wal")
            if log.exists() and log.stat().st_size:
                raise StoreError(
                    f"{self.name} was not closed, and its last points are in {log.name}, which cannot be read in a "
                    f"read-only folder; copy {self.path.name} and {log.name} together to a folder that can be written"
                ) from error
            return self._connect(f"{place}&immutable=1")
        return db

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
        if found == "ok" and self._is_cut():
            found = "its end is missing"
        if found != "ok":
            raise StoreError(self._damaged(found))

    def _is_cut(self) -> bool:
        """Whether the file ends inside a page, and no log has the rest."""
        if self.name == MEMORY:
            return False
        log = Path(f"{self.name}-wal")
        logged = log.exists() and log.stat().st_size > 0
        return not logged and self.path.stat().st_size % self._pragma("page_size") != 0

    def _add_marks(self) -> None:
        """Stores that were begun without marks get room for them; what is in them already stays without."""
        lacking = [table for table in _MARKED if not self._has_mark(table)]
        if lacking and self.writes:
            with self._transaction():
                for table in lacking:
                    if not self._has_mark(table):
                        self._db.execute(f"ALTER TABLE {table} ADD COLUMN mark TEXT")
        self._marks = self.writes or not lacking

    def _has_mark(self, table: str) -> bool:
        return any(row[1] == "mark" for row in self._db.execute(f"PRAGMA table_info({table})"))

    @property
    def _mark_column(self) -> str:
        return "mark" if self._marks else "NULL"

    def _check_mark(self, what: str, mark: str | None, *values: object) -> None:
        if mark is not None and mark != _mark(*values):
            raise StoreError(self._damaged(f"{what} is not as it was written"))

    def check_model(self) -> None:
        """Raises StoreError where the store holds points of another model, which would not be reused."""
        with self._explained("read"):
            rows = self._db.execute("SELECT DISTINCT model FROM sweeps ORDER BY model").fetchall()
        others = [str(row[0]) for row in rows if row[0] != model_version()]
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
        except (sqlite3.Error, zlib.error, ValueError, KeyError, TypeError) as error:
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


def _mark(*values: object) -> str:
    """A digest of a row."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 6)


def _unpacked(blob: bytes) -> str:
    return zlib.decompress(blob).decode()
