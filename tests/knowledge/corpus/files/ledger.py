"""A ledger of loans: who has which book, and until when."""

import datetime
from dataclasses import dataclass

DAYS = 28
LIMIT = {"child": 3, "adult": 10}


@dataclass(frozen=True)
class Loan:
    """One book in somebody's hands."""

    book: str
    reader: str
    until: datetime.date

    def is_late(self, today: datetime.date) -> bool:
        """Whether the book should be back by now."""
        return today > self.until

    @property
    def label(self) -> str:
        def shorten(text: str) -> str:
            return text[:12]

        return f"{shorten(self.book)} · {self.reader}"


class Ledger:
    def __init__(self) -> None:
        self.loans: list[Loan] = []

    # Readers at their limit are told so at the desk.
    async def lend(
        self,
        book: str,
        reader: str,
    ) -> Loan:
        loan = Loan(book, reader, datetime.date.today() + datetime.timedelta(days=DAYS))
        self.loans.append(loan)
        return loan


def count_late(ledger: Ledger, today: datetime.date) -> int:
    return sum(loan.is_late(today) for loan in ledger.loans)


if __name__ == "__main__":
    print(count_late(Ledger(), datetime.date.today()))
