-- Work to be done outside a request, and when.

CREATE TABLE jobs (
    id {id},
    kind TEXT NOT NULL,
    payload {json} NOT NULL,
    key TEXT,                            -- at most one unfinished job has it
    state TEXT NOT NULL,                 -- queued, running, done or dead
    run_at BIGINT NOT NULL,              -- not before
    attempts BIGINT NOT NULL,            -- claims so far, the present one included
    max_attempts BIGINT NOT NULL,
    fence BIGINT NOT NULL,               -- rises with every claim; only its latest holder may finish the job
    worker TEXT,
    lease_until BIGINT,                  -- while running: afterwards anybody may take the job over
    error TEXT,                          -- the last one
    added_at BIGINT NOT NULL,
    finished_at BIGINT
);

-- Partial indexes, so that a million finished jobs cost a claim nothing. The state rides along in each, so that
-- counting reads the index alone.
CREATE INDEX jobs_queued ON jobs (run_at, id, state) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (lease_until, id, state) WHERE state = 'running';
CREATE INDEX jobs_dead ON jobs (finished_at, id, state) WHERE state = 'dead';
CREATE INDEX jobs_done ON jobs (finished_at) WHERE state = 'done';
CREATE UNIQUE INDEX jobs_key ON jobs (key) WHERE state IN ('queued', 'running');

CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    rule TEXT NOT NULL,                  -- as it was when next_at was worked out
    next_at BIGINT NOT NULL
);

CREATE TABLE schedule_runs (
    schedule TEXT NOT NULL REFERENCES schedules (name) ON DELETE CASCADE,
    due_at BIGINT NOT NULL,
    job_id BIGINT NOT NULL,
    PRIMARY KEY (schedule, due_at)
);
CREATE INDEX schedule_runs_due ON schedule_runs (due_at);
