"""`almanac doc`: single documents, into the trash and out of it."""

from almanac.cli.support import operator_call
from almanac.cli.support.confirmation import confirm
from almanac.cli.support.options import DocumentIds, Home, Yes, command_group
from almanac.cli.support.startup import command_settings, with_database
from almanac.core.database import Database, Transaction
from almanac.knowledge import documents

doc_app = command_group("Single documents: into the trash and out of it.")


@doc_app.command("remove")
def remove_documents(document_ids: DocumentIds, yes: Yes = False, home: Home = None) -> None:
    """Put documents into the trash. Search no longer finds them; they can be restored.

    Example: [bold]almanac doc remove 1 --yes[/bold]
    """
    days = command_settings(home).trash_days

    async def work(db: Database) -> None:
        calls = {id: await operator_call.call_for_document(db, id) for id in document_ids}
        names = [repr((await documents.get(db, call, id, "write")).name) for id, call in calls.items()]
        subject = names[0] if len(names) == 1 else f"{len(names)} documents"
        confirm(f"Remove {subject}? This can be undone for {days} days.", yes)

        async def remove(tx: Transaction) -> None:
            for id, call in calls.items():
                await documents.remove(call, tx, [id])

        await db.write(remove)

    with_database(home, work)


@doc_app.command("restore")
def restore_documents(document_ids: DocumentIds, home: Home = None) -> None:
    """Take documents out of the trash, into their folder, or to the top if that folder is gone.

    Example: [bold]almanac doc restore 1[/bold]
    """

    async def work(db: Database) -> None:
        calls = {id: await operator_call.call_for_document(db, id) for id in document_ids}

        async def restore(tx: Transaction) -> None:
            for id, call in calls.items():
                await documents.restore(call, tx, [id])

        await db.write(restore)

    with_database(home, work)
