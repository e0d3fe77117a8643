-- What operations in plain language were asked and answered. Prompts and answers are NULL where a setting says so.

CREATE TABLE agent_executions (
    id            {id},
    at            BIGINT NOT NULL,
    org_id        TEXT NOT NULL,
    principal_id  BIGINT NOT NULL,
    surface       TEXT NOT NULL,
    tool          TEXT NOT NULL,
    outcome       TEXT NOT NULL,
    prompt        TEXT,
    answer        TEXT,
    duration_us   BIGINT NOT NULL,
    touched       TEXT NOT NULL,
    request_id    TEXT NOT NULL
);
CREATE INDEX agent_executions_org ON agent_executions (org_id, id);
CREATE INDEX agent_executions_at ON agent_executions (at);
