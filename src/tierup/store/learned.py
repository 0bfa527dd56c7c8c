"""The store of what was learned: tables of bounded records, in SQLite by default.

Everything in it can be learned again, so nothing depends on it: a store of another schema, or one that is damaged, is
set aside and begun anew; a row that does not validate is ignored and counted; what is full or old is evicted, the least
recently used first. Any number of processes share one; a transaction is whole or not there. Every method raises
StoreError where the database does not work, and whoever calls goes on without. Only workers and the command line import
this: SQLAlchemy takes a third of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from tierup.errors import StoreError
from tierup.private import make_private
from tierup.store.place import file_of
from tierup.store.rows import AGE_LIMIT_S, LIMITS, RegionProfile, Row, name_of

SCHEMA = 3
_DRIVERS = {"postgresql": "postgresql+psycopg"}  # where the URL names none: what the extra `postgres` installs
_WAIT_S = 2.0  # for a writer that holds the lock; then the store is left alone
_BODY_LIMIT_BYTES = 1 << 16
_MAX_FILE_BYTES = 256 << 20
_EVICT_EVERY = 64  # rows written by one process between looks at the limits

_METADATA = sql.MetaData()
_TABLES: dict[type[Any], sql.Table] = {
    kind: sql.Table(
        name_of(kind),
        _METADATA,
        sql.Column("key", sql.String(200), primary_key=True),
        sql.Column("made_s", sql.Float, nullable=False),
        sql.Column("used_s", sql.Float, nullable=False, index=True),
        sql.Column("body", sql.LargeBinary, nullable=False),
    )
    for kind in LIMITS
}
_VERSION = sql.Table("version", _METADATA, sql.Column("schema", sql.Integer, primary_key=True))

_R = TypeVar("_R", bound=Row)


class Counters(msgspec.Struct):
    """Since the store was opened. `ignored`: rows that do not validate; `aside`: stores that were set aside."""

    written: int = 0
    ignored: int = 0
    evicted: int = 0
    aside: int = 0


class Stored(msgspec.Struct, Generic[_R], frozen=True):
    """A row, and when it was made and last used, in seconds since 1970."""

    row: _R
    made_s: float
    used_s: float


class Store:
    """One store. `location` is a database URL, or a folder, which gets a file of ours. Not for several threads."""

    def __init__(self, location: str, limits: dict[type[Row], int] | None = None) -> None:
        self.counters = Counters()
        self._limits = {**LIMITS, **(limits or {})}
        self._path = file_of(location)
        self._until_look = 0
        try:
            if self._path is not None:
                # The folder may be older than we are, and hold other things; the file itself is for us alone.
                make_private(location, readable=True)
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._engine = self._open(location if self._path is None else f"sqlite:///{self._path}")
        except (SQLAlchemyError, OSError, ImportError, ValueError) as error:  # a driver that is not there, a port
            shown = _without_password(location)
            reason = _brief(error).replace(location, shown)
            raise StoreError(f"the store at '{shown}' cannot be opened: {reason}") from error

    def close(self) -> None:
        """Give back its connections."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, rows: Sequence[Row]) -> None:
        """Write rows, all of them or none; one with a key that is there replaces it, or is added to it."""
        now_s = time.time()
        with self._begin() as connection:
            for given in rows:
                row = self._together(connection, given)
                table, body = _TABLES[type(row)], msgspec.msgpack.encode(row)
                _DECODERS[type(row)].decode(body)  # numbers out of bounds are the writer's mistake
                if len(body) > _BODY_LIMIT_BYTES:
                    raise StoreError(f"a {name_of(type(row))} of {len(body)} bytes is too large to keep")
                connection.execute(table.delete().where(table.c.key == row.key))
                kept = {"key": row.key, "made_s": now_s, "used_s": now_s, "body": body}
                connection.execute(table.insert().values(kept))
                self.counters.written += 1
                self._until_look -= 1
            if self._until_look <= 0:
                self._until_look = _EVICT_EVERY
                self._evict(connection, now_s)

    def get(self, kind: type[_R], key: str) -> Stored[_R] | None:
        """The row with this key, which counts as used now; None if there is none that validates."""
        return self.find(kind, [key]).get(key)

    def find(self, kind: type[_R], keys: Sequence[str]) -> dict[str, Stored[_R]]:
        """The rows that there are of these keys."""
        table, found = _TABLES[kind], {}
        with self._begin() as connection:
            for key in keys:
                row = connection.execute(sql.select(table).where(table.c.key == key)).one_or_none()
                decoded = None if row is None else self._decoded(kind, key, row.body)
                if row is not None and decoded is not None:
                    found[key] = Stored(decoded, row.made_s, row.used_s)
                    connection.execute(table.update().where(table.c.key == key).values(used_s=time.time()))
        return found

    def all(self, kind: type[_R]) -> list[Stored[_R]]:
        """Every row that validates, the last used first."""
        table = _TABLES[kind]
        with self._begin() as connection:
            rows = connection.execute(sql.select(table).order_by(table.c.used_s.desc())).all()
        decoded = ((self._decoded(kind, row.key, row.body), row) for row in rows)
        return [Stored(record, row.made_s, row.used_s) for record, row in decoded if record is not None]

    def count(self) -> dict[str, int]:
        """How many rows each table has."""
        with self._begin() as connection:
            return {
                table.name: connection.execute(sql.select(sql.func.count()).select_from(table)).scalar_one()
                for table in _TABLES.values()
            }

    def verify(self) -> int:
        """Read everything, and remove rows that do not validate: how many there were."""
        before = self.counters.ignored
        with self._begin() as connection:
            for kind, table in _TABLES.items():
                for row in connection.execute(sql.select(table)).all():
                    if self._decoded(kind, row.key, row.body) is None:
                        connection.execute(table.delete().where(table.c.key == row.key))
        return self.counters.ignored - before

    def clear(self) -> int:
        """Remove every row: how many there were."""
        total = sum(self.count().values())
        with self._begin() as connection:
            for table in _TABLES.values():
                connection.execute(table.delete())
        return total

    def _together(self, connection: sql.Connection, row: Row) -> Row:
        """A row with what is there under its key, where such rows add up."""
        if not isinstance(row, RegionProfile):
            return row
        table = _TABLES[RegionProfile]
        found = connection.execute(sql.select(table.c.body).where(table.c.key == row.key)).one_or_none()
        earlier = None if found is None else self._decoded(RegionProfile, row.key, found.body)
        return row if earlier is None else row.after(earlier)

    def _decoded(self, kind: type[_R], key: str, body: Any) -> _R | None:
        try:
            if not isinstance(body, bytes) or len(body) > _BODY_LIMIT_BYTES:
                raise ValueError("it has no body, or one that is too large")
            row = _DECODERS[kind].decode(body)
            if row.key != key:
                raise ValueError("it belongs to another key")
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            self.counters.ignored += 1
            return None
        return row  # type: ignore[no-any-return]  # the decoder of this kind

    def _evict(self, connection: sql.Connection, now_s: float) -> None:
        for kind, table in _TABLES.items():
            old = connection.execute(table.delete().where(table.c.used_s < now_s - AGE_LIMIT_S))
            last = sql.select(table.c.key).order_by(table.c.used_s.desc(), table.c.key).offset(self._limits[kind])
            many = [row.key for row in connection.execute(last.limit(100_000))]
            for key in many:
                connection.execute(table.delete().where(table.c.key == key))
            self.counters.evicted += max(0, old.rowcount) + len(many)

    @contextmanager
    def _begin(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the store does not answer: {_brief(error)}") from error

    def _open(self, url: str) -> sql.Engine:
        """An engine whose database has our tables; a file that is something else is set aside first."""
        for attempt in range(2):
            engine = _engine(url)
            try:
                found = _schema(engine)
                if found == SCHEMA:
                    return engine
                reason = f"schema {found}"
            except OperationalError:  # locked, read-only, full, gone: no fault of the file's
                engine.dispose()
                raise
            except DatabaseError:
                reason = "damaged"
            engine.dispose()
            if attempt or self._path is None:
                break
            self._set_aside(reason)
        raise StoreError(f"it is {reason}, but {SCHEMA} is this version's schema; give another store_url")

    def _set_aside(self, reason: str) -> None:
        """Another version may still want it. One such file of each kind is kept."""
        assert self._path is not None
        aside = f"{self._path}.{reason.replace(' ', '-')}"
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(self._path + suffix, aside + suffix)
        self.counters.aside += 1


_DECODERS: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {kind: msgspec.msgpack.Decoder(kind) for kind in LIMITS}


def _engine(url: str) -> sql.Engine:
    if not url.startswith("sqlite:"):
        known = sql.make_url(url)
        driver = _DRIVERS.get(known.drivername, known.drivername)
        return sql.create_engine(known.set(drivername=driver), pool_pre_ping=True)
    engine = sql.create_engine(url, connect_args={"timeout": _WAIT_S})

    @sql.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        # WAL: readers and a writer do not wait for each other, and a killed writer leaves a whole database.
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"max_page_count={_MAX_FILE_BYTES // page_bytes}"):
            connection.execute(f"PRAGMA {pragma}")
        connection.isolation_level = None  # transactions begin where we say so, below

    @sql.event.listens_for(engine, "begin")
    def _lock(connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # two that begin as readers could not both become writers

    return engine


def _schema(engine: sql.Engine) -> int:
    """The version that the database says it has; an empty one is given our tables."""
    with engine.begin() as connection:
        names = sql.inspect(connection).get_table_names()
        if names and "version" not in names:
            return -1
        if not names:
            _METADATA.create_all(connection)
            connection.execute(_VERSION.insert().values(schema=SCHEMA))
        found = connection.execute(sql.select(sql.func.max(_VERSION.c.schema))).scalar()
        return -1 if found is None else int(found)


def _brief(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0][:300]


def _without_password(location: str) -> str:
    scheme, separator, rest = location.partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}:***@{place}" if at and ":" in user else location
