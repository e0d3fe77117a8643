"""What can go wrong in a database, in the same words for SQLite and PostgreSQL.

    DatabaseError
    ├── DatabaseUnavailable     cannot connect, locked, timed out; trying later may help
    ├── DatabaseFull            no room, or read-only; an operator has to act
    ├── Conflict                a unique or foreign key says no; the caller's data is at odds with what is stored
    ├── StatementRejected       the SQL or a value is wrong; a mistake in our code
    └── MigrationRefused        the schema and this version of the program do not belong together

No message carries a value: what somebody stored must not reach a log through an error.
"""


class DatabaseError(Exception):
    """The database could not do what was asked."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached or is busy; try again shortly."""


class DatabaseFull(DatabaseError):
    """The database cannot be written: the disk is full or read-only. Free some space; nothing was changed."""


class Conflict(DatabaseError):
    """A unique or foreign key was violated; `kind` says which, the rest as far as the database tells."""

    def __init__(
        self,
        kind: str,
        *,
        table: str | None = None,
        columns: tuple[str, ...] = (),
        constraint: str | None = None,
    ) -> None:
        self.kind = kind
        self.table = table
        self.columns = columns
        self.constraint = constraint
        super().__init__(f"{kind} key violated: {', '.join(columns) or constraint or table or 'unnamed'}")


class StatementRejected(DatabaseError):
    """The database refused a statement or a value."""


class MigrationRefused(DatabaseError):
    """The migrations on disk do not match the ones this database has had."""
