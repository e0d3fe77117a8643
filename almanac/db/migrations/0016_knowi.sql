-- Sessions of the Knowi surface. The number is a part of the session's id, which grants nothing.

CREATE TABLE knowi_sessions (
    id            {id},
    principal_id  BIGINT NOT NULL,        -- the only one who may use it
    used_at       BIGINT NOT NULL         -- written only now and then
);
CREATE INDEX knowi_sessions_used ON knowi_sessions (used_at);

-- The role of every member of the organisation on a knowledge base of the organisation.
ALTER TABLE bases ADD COLUMN member_role TEXT NOT NULL DEFAULT 'Reporter';

-- The knowledge base of an organisation in which documents of the Knowi surface are stored.
CREATE TABLE document_stores (
    id       {id},                        -- that of the datasource, for callers
    org_id   TEXT NOT NULL UNIQUE REFERENCES orgs (id),
    base_id  BIGINT                       -- NULL until it is made
);
