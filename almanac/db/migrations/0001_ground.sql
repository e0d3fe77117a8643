-- Who may call, what they called, and how much.

CREATE TABLE orgs (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    created_at  BIGINT NOT NULL
);

-- Users and agents: whoever can hold a token.
CREATE TABLE principals (
    id          {id},
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    kind        TEXT NOT NULL CHECK (kind IN ('user', 'agent')),
    name        TEXT NOT NULL,
    is_admin    BIGINT NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL,
    removed_at  BIGINT
);
-- A removed name is free again, and its rows stay for the audit trail.
CREATE UNIQUE INDEX principals_name ON principals (org_id, name) WHERE removed_at IS NULL;

CREATE TABLE groups (
    id            {id},
    org_id        TEXT NOT NULL REFERENCES orgs (id),
    name          TEXT NOT NULL,
    display_name  TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    UNIQUE (org_id, name)
);

CREATE TABLE members (
    group_id      BIGINT NOT NULL REFERENCES groups (id),
    principal_id  BIGINT NOT NULL REFERENCES principals (id),
    role          TEXT NOT NULL,
    since         BIGINT NOT NULL,
    PRIMARY KEY (group_id, principal_id)
);
CREATE INDEX members_principal ON members (principal_id);

-- A role given on one thing to one principal or to every member of one group.
CREATE TABLE grants (
    id            {id},
    org_id        TEXT NOT NULL REFERENCES orgs (id),
    thing_kind    TEXT NOT NULL,
    thing_id      TEXT NOT NULL,
    principal_id  BIGINT REFERENCES principals (id),
    group_id      BIGINT REFERENCES groups (id),
    role          TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    CHECK ((principal_id IS NULL) <> (group_id IS NULL))
);
CREATE UNIQUE INDEX grants_principal ON grants (thing_kind, thing_id, principal_id) WHERE principal_id IS NOT NULL;
CREATE UNIQUE INDEX grants_group ON grants (thing_kind, thing_id, group_id) WHERE group_id IS NOT NULL;
CREATE INDEX grants_of_principal ON grants (principal_id, thing_kind) WHERE principal_id IS NOT NULL;
CREATE INDEX grants_of_group ON grants (group_id, thing_kind) WHERE group_id IS NOT NULL;

CREATE TABLE tokens (
    id            {id},
    principal_id  BIGINT NOT NULL REFERENCES principals (id),
    kind          TEXT NOT NULL,
    hash          {bytes} NOT NULL UNIQUE,
    hint          TEXT NOT NULL,
    scopes        TEXT NOT NULL,
    bases         TEXT,
    tools         TEXT,
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT,
    revoked_at    BIGINT,
    last_used_at  BIGINT
);
CREATE INDEX tokens_principal ON tokens (principal_id);

CREATE TABLE audit (
    id            {id},
    at            BIGINT NOT NULL,
    org_id        TEXT NOT NULL,
    principal_id  BIGINT NOT NULL,
    token_id      BIGINT NOT NULL,
    surface       TEXT NOT NULL,
    tool          TEXT NOT NULL,
    outcome       TEXT NOT NULL,
    duration_us   BIGINT NOT NULL,
    digest        TEXT NOT NULL,
    touched       TEXT NOT NULL,
    request_id    TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at);
CREATE INDEX audit_principal ON audit (principal_id, at);

-- What each organisation has used, by UTC month.
CREATE TABLE usage (
    org_id  TEXT NOT NULL,
    period  TEXT NOT NULL,
    metric  TEXT NOT NULL,
    count   BIGINT NOT NULL CHECK (count >= 0),
    PRIMARY KEY (org_id, period, metric)
);
