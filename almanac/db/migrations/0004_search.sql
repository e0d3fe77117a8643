-- What is searched: sources, their passages by words and by vectors, and how far derived files have caught up.

{if postgres}
CREATE EXTENSION IF NOT EXISTS vector;
{end}

-- A part of the passages that is searched together, and the model that its vectors are of.
CREATE TABLE collections (
    name        TEXT PRIMARY KEY,         -- 'base:7'
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    model       TEXT NOT NULL,
    next_model  TEXT                      -- the one it is being embedded with anew; takes over when all is done
);

-- What passages are of, as far as a search has to know it: where it is, what it is called, what it can be filtered by.
CREATE TABLE sources (
    id          {id},
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    collection  TEXT NOT NULL REFERENCES collections (name),
    kind        TEXT NOT NULL,            -- 'document'
    owner_id    TEXT NOT NULL,            -- what its slice calls it
    title       TEXT NOT NULL,
    folder_id   BIGINT NOT NULL,
    tags        {json} NOT NULL,
    metadata    {json} NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    is_live     BIGINT NOT NULL,          -- 0: of something disabled or in the trash
    version     BIGINT NOT NULL,          -- rises whenever its passages, their words or their vectors change
    is_embedded BIGINT NOT NULL           -- 0: some passage lacks a vector of the model its collection has or will have
);
CREATE UNIQUE INDEX sources_owner ON sources (kind, owner_id);
CREATE INDEX sources_collection ON sources (collection, id);
CREATE INDEX sources_unembedded ON sources (collection, id) WHERE is_embedded = 0;

INSERT INTO collections (name, org_id, model)
    SELECT collection, min(org_id), '' FROM passages GROUP BY collection;
INSERT INTO sources (org_id, collection, kind, owner_id, title, folder_id, tags, metadata, created_at, updated_at,
    is_live, version, is_embedded)
    SELECT p.org_id, p.collection, 'document', p.owner_id, coalesce(nullif(r.title, ''), d.name), d.folder_id, d.tags,
        d.metadata, d.created_at, d.updated_at, p.is_live, 1, 0
    FROM passages p JOIN documents d ON d.id = CAST(p.owner_id AS BIGINT)
        LEFT JOIN readings r ON r.document_id = d.id
    WHERE p.ordinal = 0 AND p.owner_kind = 'document';

ALTER TABLE passages RENAME TO old_passages;
DROP INDEX passages_owner;
DROP INDEX passages_collection;
CREATE TABLE passages (
    id          {id},
    source_id   BIGINT NOT NULL REFERENCES sources (id) ON DELETE CASCADE,
    ordinal     BIGINT NOT NULL,
    parent      BIGINT,                   -- ordinal of the passage around it
    form        TEXT NOT NULL,            -- text, table or code
    text        TEXT NOT NULL,
    span_start  BIGINT NOT NULL,
    span_end    BIGINT NOT NULL,
    headings    {json} NOT NULL,
    page        BIGINT,
    boxes       {json} NOT NULL,
    words       {bytes}                   -- its terms, counted (search/analysis.py); none: still to be analysed
);
INSERT INTO passages (source_id, ordinal, parent, form, text, span_start, span_end, headings, page, boxes)
    SELECT s.id, p.ordinal, p.parent, p.form, p.text, p.span_start, p.span_end, p.headings, p.page, p.boxes
    FROM old_passages p JOIN sources s ON s.kind = p.owner_kind AND s.owner_id = p.owner_id ORDER BY p.id;
DROP TABLE old_passages;
CREATE UNIQUE INDEX passages_source ON passages (source_id, ordinal);
CREATE INDEX passages_unread ON passages (id) WHERE words IS NULL;

CREATE TABLE vectors (
    passage_id  BIGINT NOT NULL REFERENCES passages (id) ON DELETE CASCADE,
    model       TEXT NOT NULL,
    source_id   BIGINT NOT NULL,
    collection  TEXT NOT NULL,            -- as its source says; here too, so that PostgreSQL can scan one collection
    vector      {vector} NOT NULL,        -- of length one, in half precision
    PRIMARY KEY (passage_id, model)
);
CREATE INDEX vectors_source ON vectors (source_id);

{if sqlite}
-- Files derived from these tables catch up by the sequence of what changed.
CREATE TABLE changes (
    sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
    source_id  BIGINT NOT NULL
);
CREATE TRIGGER sources_added AFTER INSERT ON sources BEGIN
    INSERT INTO changes (source_id) VALUES (NEW.id);
END;
CREATE TRIGGER sources_changed AFTER UPDATE OF collection, is_live, version ON sources BEGIN
    INSERT INTO changes (source_id) VALUES (NEW.id);
END;
CREATE TRIGGER sources_removed AFTER DELETE ON sources BEGIN
    INSERT INTO changes (source_id) VALUES (OLD.id);
END;
INSERT INTO changes (source_id) SELECT id FROM sources;
CREATE TABLE segments (
    id          {id},
    file        TEXT NOT NULL UNIQUE,     -- its name in the index folder
    passages    BIGINT NOT NULL,          -- rows in it, whether they still hold or not
    sequence    BIGINT NOT NULL,          -- it holds what its sources were at this point of the changes,
    masked      {bytes} NOT NULL          -- but for these (ids of 8 bytes each); the same point for all segments
);
{end}
{if postgres}
-- The terms of a passage, each mixed with its collection, so that a list holds what one collection has of a term. They
-- are half as long as the hashes in `words` and lead to candidates; what these really have is read from `words`.
CREATE TABLE terms (
    passage_id  BIGINT PRIMARY KEY REFERENCES passages (id) ON DELETE CASCADE,
    source_id   BIGINT NOT NULL,
    collection  TEXT NOT NULL,
    terms       INTEGER[] NOT NULL
);
-- What is added waits in a list that every search reads: a short one, so that no search notices it.
CREATE INDEX terms_terms ON terms USING gin (terms) WITH (fastupdate = on, gin_pending_list_limit = 256);
CREATE INDEX terms_source ON terms (source_id);

-- Words and vectors lie in the row itself, for they are read by the thousand.
ALTER TABLE passages ALTER COLUMN words SET STORAGE MAIN;
ALTER TABLE vectors SET (toast_tuple_target = 8160);
CREATE INDEX vectors_collection ON vectors (collection, model);

-- How many passages of a source have been analysed, and how long these are in all.
ALTER TABLE sources ADD COLUMN passages BIGINT NOT NULL DEFAULT 0, ADD COLUMN length BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sources_size ON sources (collection) INCLUDE (id, is_live, passages, length);

-- How many passages of a collection have its more common terms: counted now and then, in the background.
CREATE TABLE frequencies (
    collection  TEXT PRIMARY KEY REFERENCES collections (name) ON DELETE CASCADE,
    counted_at  BIGINT NOT NULL,
    passages    BIGINT NOT NULL,          -- that there were then
    terms       BYTEA NOT NULL,           -- as in `terms`, but not mixed with the collection; sorted
    counts      BYTEA NOT NULL
);

-- A function, for the planner cannot tell how long a list is and would often rather read everything. It follows some
-- lists at a time: what it costs to follow them grows with their number times the number of passages they lead to.
CREATE FUNCTION matching(wanted INTEGER[], together INTEGER) RETURNS TABLE (passage_id BIGINT, source_id BIGINT)
    LANGUAGE sql STABLE ROWS 1000
    SET enable_seqscan = off SET enable_indexscan = off SET jit = off
    AS $$
        SELECT t.passage_id, t.source_id FROM generate_series(1, cardinality(wanted), together) AS first
        JOIN terms t ON t.terms && wanted[first : first + together - 1]
    $$;
{end}
