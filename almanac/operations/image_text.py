"""The job that recognises the text in an uploaded image attachment, so that searches find the image by it.

The image is parsed in the sandbox like an image document. If that fails or the image contains no text, searches still
find it by its name, description and annotations.
"""

import structlog

from almanac.catalogue import attachments, entity_text
from almanac.core.database import Database
from almanac.files.file_store import FileStore
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.knowledge.parsers.sandboxed_parse import parse_in_sandbox
from almanac.sandbox.pool import SandboxPool

_log = structlog.get_logger("almanac.image_text")


class RecogniseImageText:
    """Handler of `attachments.IMAGE_TEXT_JOB`."""

    def __init__(self, db: Database, files: FileStore, pool: SandboxPool) -> None:
        self._db = db
        self._files = files
        self._pool = pool

    async def __call__(self, job: Job) -> Effect | None:
        """Recognise the text of the job's image. Running twice has the same result."""
        id = str(job.payload["attachment"])
        image = await attachments.get_or_none(self._db, id)
        path = self._files.path(image.file_name) if image and image.file_name else None
        if image is None or path is None or not path.exists():
            return None
        try:
            document = await parse_in_sandbox(self._pool, path, image.name, PassageSplitter().as_options())
        except UnreadableFile as error:
            _log.info("image_text_not_recognised", attachment=id, code=error.code)
            return None
        return lambda tx: attachments.set_text(tx, id, document.text[: entity_text.MAX_ENTITY_CHARS])
