-- The organisation that a job works for, so that organisations take turns. Empty for jobs of the server itself.

ALTER TABLE jobs ADD COLUMN org_id TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_turns ON jobs (org_id, run_at, id) WHERE state = 'queued';

-- Job kinds are named after their work. Keys begin with the kind. The schedules register again under their new names.
UPDATE jobs SET kind = 'embed_passages', key = 'embed_passages' || substr(key, 6) WHERE kind = 'embed';
UPDATE jobs SET kind = 'delete_old_vectors', key = 'delete_old_vectors' || substr(key, 7) WHERE kind = 'forget';
UPDATE jobs SET kind = 'analyse_passages', key = 'analyse_passages' WHERE kind = 'reword';
UPDATE jobs SET kind = 'reindex_category', key = 'reindex_category' || substr(key, 7) WHERE kind = 'shelve';
UPDATE jobs SET kind = 'image_text', key = 'image_text' || substr(key, 8) WHERE kind = 'picture';
UPDATE jobs SET kind = 'purge_expired', key = 'schedule:purge_expired' WHERE kind = 'housekeeping';
UPDATE jobs SET kind = 'repair_interrupted', key = 'schedule:repair_interrupted' WHERE kind = 'tidy';
UPDATE jobs SET kind = 'maintain_index', key = 'schedule:maintain_index' WHERE kind = 'index';
DELETE FROM schedules WHERE name IN ('housekeeping', 'tidy', 'index');
