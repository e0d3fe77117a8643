"""The errors of a database, the same for SQLite and PostgreSQL.

    DatabaseError
    ├── DatabaseUnavailable     cannot connect, locked, timed out; trying later may help
    ├── DatabaseFull            the disk is full or read-only; an operator has to act
    ├── ConstraintConflict      a unique or foreign key is violated: the data conflicts with stored data
    ├── StatementRejected       the SQL or a value is wrong; a mistake in our code
    └── MigrationRefused        the schema does not match this version of the program

A caller receives the docstring of the class. The driver's message (`str(error)`) is for logs and operators. Neither
contains a value, so that stored data does not reach a log through an error.
"""

from almanac.core import errors


class DatabaseError(errors.AlmanacError):
    """The database could not run the request."""

    remedy = errors.Internal.remedy

    def __init__(self, detail: str = "", *, message: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail

    def __str__(self) -> str:
        return self.detail or self.message


class DatabaseUnavailable(DatabaseError, errors.Unavailable):
    """The database cannot be reached or is busy."""

    code = errors.Unavailable.code
    status = errors.Unavailable.status
    remedy = errors.Unavailable.remedy


class DatabaseFull(DatabaseError, errors.Unavailable):
    """The database cannot be written: the disk is full or read-only. Nothing was changed."""

    code = errors.Unavailable.code
    status = errors.Unavailable.status
    remedy = "An operator has to free disk space."


class ConstraintConflict(DatabaseError, errors.Conflict):
    """The request conflicts with stored data."""

    code = errors.Conflict.code
    status = errors.Conflict.status
    remedy = "Read the current state, then try again."

    def __init__(
        self, kind: str, *, table: str | None = None, columns: tuple[str, ...] = (), constraint: str | None = None
    ) -> None:
        self.kind = kind  # "unique" or "foreign"; the others as far as the database reports them
        self.table = table
        self.columns = columns
        self.constraint = constraint
        super().__init__(f"{kind} key violated: {', '.join(columns) or constraint or table or 'unnamed'}")


class StatementRejected(DatabaseError):
    """The database refused a statement or a value."""


class MigrationRefused(DatabaseError):
    """The migrations on disk do not match the migrations that this database has applied."""

    remedy = ""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, message=detail)  # it is shown to the operator who starts the server
