-- The organisation that a job works for, so that organisations take turns. Empty for jobs of the server itself.

ALTER TABLE jobs ADD COLUMN org_id TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_turns ON jobs (org_id, run_at, id) WHERE state = 'queued';
