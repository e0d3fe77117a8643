"""What can go wrong in a database, in the same words for SQLite and PostgreSQL.

    DatabaseError
    ├── DatabaseUnavailable     cannot connect, locked, timed out; trying later may help
    ├── DatabaseFull            no room, or read-only; an operator has to act
    ├── Conflict                a unique or foreign key says no; the caller's data is at odds with what is stored
    ├── StatementRejected       the SQL or a value is wrong; a mistake in our code
    └── MigrationRefused        the schema and this version of the program do not belong together

A caller is told the class's own sentence; what the driver said (`str(error)`) is for logs and operators. Neither
carries a value: what somebody stored must not reach a log through an error.
"""

from almanac.core import errors


class DatabaseError(errors.AlmanacError):
    """The database could not do what was asked."""

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
    remedy = "An operator has to free some space."


class ConstraintConflict(DatabaseError, errors.Conflict):
    """This clashes with what is already there."""

    code = errors.Conflict.code
    status = errors.Conflict.status
    remedy = "Read the present state, then try again."

    def __init__(
        self,
        kind: str,
        *,
        table: str | None = None,
        columns: tuple[str, ...] = (),
        constraint: str | None = None,
    ) -> None:
        self.kind = kind  # "unique" or "foreign"; the rest as far as the database tells
        self.table = table
        self.columns = columns
        self.constraint = constraint
        super().__init__(f"{kind} key violated: {', '.join(columns) or constraint or table or 'unnamed'}")


class StatementRejected(DatabaseError):
    """The database refused a statement or a value."""


class MigrationRefused(DatabaseError):
    """The migrations on disk do not match the ones this database has had."""

    remedy = ""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, message=detail)  # for the operator who starts the server: there is no caller yet
