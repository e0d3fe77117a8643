-- Attachments that were uploaded: the file that has the content, what it is, and of a picture what is written in it.
ALTER TABLE attachments ADD COLUMN blob_id BIGINT REFERENCES blobs (id);
ALTER TABLE attachments ADD COLUMN size BIGINT NOT NULL DEFAULT 0;
ALTER TABLE attachments ADD COLUMN text TEXT NOT NULL DEFAULT '';
CREATE INDEX attachments_blob ON attachments (blob_id) WHERE blob_id IS NOT NULL;
