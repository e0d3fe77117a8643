"""`almanac doc`: single documents, into the trash and out of it."""

from almanac.cli.support import operator_call
from almanac.cli.support.confirmation import confirm
from almanac.cli.support.options import DocumentIds, Yes, command_group
from almanac.cli.support.startup import database_command
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.knowledge import documents

doc_app = command_group("Single documents: into the trash and out of it.")


@doc_app.command("remove")
@database_command
async def remove_documents(db: Database, settings: Settings, document_ids: DocumentIds, yes: Yes = False) -> None:
    """Put documents into the trash. Search no longer finds them; they can be restored.

    Example: [bold]almanac doc remove 1 --yes[/bold]
    """
    calls = {id: await operator_call.call_for_document(db, id) for id in document_ids}
    names = [repr((await documents.get(db, call, id, "write")).name) for id, call in calls.items()]
    subject = names[0] if len(names) == 1 else f"{len(names)} documents"
    confirm(f"Remove {subject}? This can be undone for {settings.trash_days} days.", yes)

    async def remove(tx: Transaction) -> None:
        for id, call in calls.items():
            await documents.remove(call, tx, [id])

    await db.write(remove)


@doc_app.command("restore")
@database_command
async def restore_documents(db: Database, document_ids: DocumentIds) -> None:
    """Take documents out of the trash, into their folder, or to the top if that folder is gone.

    Example: [bold]almanac doc restore 1[/bold]
    """
    calls = {id: await operator_call.call_for_document(db, id) for id in document_ids}

    async def restore(tx: Transaction) -> None:
        for id, call in calls.items():
            await documents.restore(call, tx, [id])

    await db.write(restore)
