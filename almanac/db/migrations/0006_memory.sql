-- What agents have learnt: notes, what superseded what, what they are about and what they rest on.

-- What was said elsewhere before a thing, which helps to find one that is short.
ALTER TABLE sources ADD COLUMN context TEXT NOT NULL DEFAULT '';

CREATE TABLE notes (
    number         {id},                  -- in the order in which they were stored
    id             TEXT NOT NULL UNIQUE,  -- a UUID
    org_id         TEXT NOT NULL REFERENCES orgs (id),
    author_id      BIGINT NOT NULL REFERENCES principals (id),
    source         TEXT NOT NULL,         -- 'agent': said in a call
    title          TEXT NOT NULL,
    body           TEXT NOT NULL,
    tags           {json} NOT NULL,
    confidence     BIGINT NOT NULL CHECK (confidence BETWEEN 0 AND 100),
    created_at     BIGINT NOT NULL,
    expires_at     BIGINT,
    is_expired     BIGINT NOT NULL,       -- 1: that it has expired has been told to search
    successor_id   TEXT REFERENCES notes (id),  -- what superseded it
    head_id        TEXT REFERENCES notes (id),  -- the live note at the end of the chain that begins there
    superseded_at  BIGINT,
    CHECK ((successor_id IS NULL) = (head_id IS NULL)),
    CHECK ((successor_id IS NULL) = (superseded_at IS NULL)),
    CHECK (head_id <> id)
);
CREATE INDEX notes_org ON notes (org_id, number);
CREATE INDEX notes_author ON notes (author_id, number);
CREATE INDEX notes_head ON notes (head_id) WHERE head_id IS NOT NULL;
CREATE INDEX notes_expiring ON notes (org_id, expires_at) WHERE expires_at IS NOT NULL AND is_expired = 0;

-- Which tasks notes have to do with. Tasks are kept elsewhere; here they are names.
CREATE TABLE task_knowledge (
    org_id      TEXT NOT NULL,
    task_id     TEXT NOT NULL,
    note_id     TEXT NOT NULL REFERENCES notes (id),
    kind        TEXT NOT NULL CHECK (kind IN ('references', 'produced')),
    PRIMARY KEY (org_id, task_id, note_id, kind)
);
CREATE INDEX task_knowledge_note ON task_knowledge (note_id);

-- Which notes rest on which.
CREATE TABLE note_citations (
    cited_id    TEXT NOT NULL REFERENCES notes (id),
    note_id     TEXT NOT NULL REFERENCES notes (id),
    PRIMARY KEY (cited_id, note_id)
);
CREATE INDEX note_citations_note ON note_citations (note_id);

-- One row for each organisation, which whoever links two notes changes first: links are made one after another.
CREATE TABLE memories (
    org_id        TEXT PRIMARY KEY REFERENCES orgs (id),
    supersessions BIGINT NOT NULL
);

-- Calls that may come twice: what the first of them came to, for as long as it counts.
CREATE TABLE repeats (
    key    TEXT PRIMARY KEY,
    value  TEXT NOT NULL,
    until  BIGINT NOT NULL
);
CREATE INDEX repeats_until ON repeats (until);

-- How much of something an organisation may use in a month, where it is not what the settings say.
CREATE TABLE allowances (
    org_id  TEXT NOT NULL REFERENCES orgs (id),
    metric  TEXT NOT NULL,
    most    BIGINT,                       -- none: no limit
    PRIMARY KEY (org_id, metric)
);
