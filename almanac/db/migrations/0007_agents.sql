-- What was said to agents, and what they answered: so that a question can lean on those before it, and that a message
-- which is being answered can be looked at, and stopped, by any process.
CREATE TABLE agent_tasks (
    number        {id},                  -- in the order in which they came
    id            TEXT NOT NULL UNIQUE,  -- a UUID
    org_id        TEXT NOT NULL REFERENCES orgs (id),
    principal_id  BIGINT NOT NULL REFERENCES principals (id),
    agent         TEXT NOT NULL,
    session_id    TEXT NOT NULL,         -- as the caller calls it
    question      TEXT NOT NULL,
    resolved      TEXT NOT NULL,         -- the question as it can be understood alone
    answer        TEXT NOT NULL,
    sources       {json} NOT NULL,       -- what the answer cites
    state         TEXT NOT NULL CHECK (state IN ('working', 'completed', 'failed', 'canceled')),
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL
);
CREATE INDEX agent_tasks_session ON agent_tasks (org_id, principal_id, agent, session_id, number);
CREATE INDEX agent_tasks_age ON agent_tasks (created_at);
