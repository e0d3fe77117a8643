-- The catalogue: what an organisation has, in a tree of categories; and what search needs to filter it by.

-- Short lists of words that the rest refers to: aliases of categories, policies, kinds of relations and of attachments.
CREATE TABLE vocabulary (
    id           TEXT PRIMARY KEY,        -- 24 hexadecimal digits, as everything in the catalogue has
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    kind         TEXT NOT NULL CHECK (kind IN ('alias', 'policy', 'relation', 'attachment')),
    key          TEXT NOT NULL,
    name         TEXT NOT NULL,
    description  TEXT NOT NULL,
    details      {json} NOT NULL,         -- of a policy: what goes in, what comes out
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX vocabulary_key ON vocabulary (org_id, kind, key);

-- The number is what search knows a category by; a parent is not a foreign key, for a broken tree must still be listed.
CREATE TABLE categories (
    number       {id},
    id           TEXT NOT NULL UNIQUE,
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    parent       BIGINT NOT NULL,         -- 0: at the top
    name         TEXT NOT NULL,
    description  TEXT NOT NULL,
    alias_id     TEXT REFERENCES vocabulary (id),
    policy_id    TEXT REFERENCES vocabulary (id),
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX categories_name ON categories (org_id, parent, name);
CREATE INDEX categories_alias ON categories (alias_id);
CREATE INDEX categories_policy ON categories (policy_id);

CREATE TABLE entities (
    id           TEXT PRIMARY KEY,
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    category     BIGINT NOT NULL REFERENCES categories (number),
    name         TEXT NOT NULL,
    description  TEXT NOT NULL,
    details      TEXT NOT NULL,
    source       TEXT NOT NULL,
    sku          TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('draft', 'active', 'archived')),
    tags         {json} NOT NULL,
    metadata     {json} NOT NULL,
    folded       TEXT NOT NULL,           -- name, description and details, for finding them in any case of letters
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE INDEX entities_name ON entities (org_id, name);
CREATE INDEX entities_sku ON entities (org_id, sku) WHERE sku <> '';
CREATE INDEX entities_source ON entities (org_id, source) WHERE source <> '';
CREATE INDEX entities_category ON entities (category, id);
CREATE INDEX entities_org ON entities (org_id, id);

CREATE TABLE relations (
    id           TEXT PRIMARY KEY,
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    source_id    TEXT NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    target_id    TEXT NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    type_id      TEXT NOT NULL REFERENCES vocabulary (id),
    description  TEXT NOT NULL,
    created_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX relations_source ON relations (source_id, target_id, type_id);
CREATE INDEX relations_target ON relations (target_id);
CREATE INDEX relations_type ON relations (type_id);

CREATE TABLE attachments (
    id           TEXT PRIMARY KEY,
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    name         TEXT NOT NULL,
    url          TEXT NOT NULL,
    description  TEXT NOT NULL,
    annotations  {json} NOT NULL,
    type_id      TEXT REFERENCES vocabulary (id),
    media_type   TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE INDEX attachments_url ON attachments (org_id, url);
CREATE INDEX attachments_type ON attachments (type_id);
CREATE TABLE attached (
    entity_id      TEXT NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    attachment_id  TEXT NOT NULL REFERENCES attachments (id) ON DELETE CASCADE,
    PRIMARY KEY (entity_id, attachment_id)
);
CREATE INDEX attached_to ON attached (attachment_id);

-- What may be searched under one name: some categories, with all below them.
CREATE TABLE namespaces (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    name        TEXT NOT NULL,
    notes       TEXT NOT NULL,
    categories  {json} NOT NULL,          -- their ids; none: all there are
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE UNIQUE INDEX namespaces_name ON namespaces (org_id, name);

-- Callers of the gateway who connected once and are known by their session since.
CREATE TABLE gateway_sessions (
    hash        {bytes} PRIMARY KEY,      -- of the session's id
    content     TEXT NOT NULL,
    used_at     BIGINT NOT NULL
);
CREATE INDEX gateway_sessions_used ON gateway_sessions (used_at);

-- Of what media type a thing is, where it has one.
ALTER TABLE sources ADD COLUMN media TEXT NOT NULL DEFAULT '';
UPDATE sources SET media = coalesce((SELECT d.mime_type FROM documents d WHERE d.id = CAST(sources.owner_id AS BIGINT)), '')
    WHERE kind = 'document';
CREATE INDEX sources_folder ON sources (collection, folder_id, id);

-- The single values in the metadata of sources, each under its key in its collection: what leads a filter to the few
-- sources it leaves. Texts are cut at 40 characters; the keys of truth values have a mark behind them.
CREATE TABLE fields (
    id          {id},
    collection  TEXT NOT NULL REFERENCES collections (name) ON DELETE CASCADE,
    name        TEXT NOT NULL
);
CREATE UNIQUE INDEX fields_name ON fields (collection, name);
CREATE TABLE facts (
    source_id  BIGINT NOT NULL REFERENCES sources (id) ON DELETE CASCADE,
    field      BIGINT NOT NULL,
{if sqlite}
    text       TEXT,
{end}
{if postgres}
    text       TEXT COLLATE "C",          -- compared by code points, as SQLite does
{end}
    number     {float}
);
{if sqlite}
CREATE TEMP TABLE found AS
    SELECT s.id, s.collection, j.key AS name, j.value, j.type
    FROM sources s, json_each(s.metadata) j WHERE instr(s.metadata, '\u0000') = 0 AND j.type IN ('text', 'integer', 'real', 'true', 'false')
    UNION ALL
    SELECT s.id, s.collection, j.key, m.value, m.type
    FROM sources s, json_each(s.metadata) j, json_each(j.value) m
    WHERE instr(s.metadata, '\u0000') = 0 AND j.type = 'array' AND m.key < 100 AND m.type IN ('text', 'integer', 'real', 'true', 'false');
DELETE FROM found WHERE instr(name, char(1)) > 0;
UPDATE found SET name = name || char(1) WHERE type IN ('true', 'false');
INSERT INTO fields (collection, name) SELECT DISTINCT collection, name FROM found;
INSERT INTO facts (source_id, field, text, number)
    SELECT o.id, f.id, CASE o.type WHEN 'text' THEN substr(o.value, 1, 40) WHEN 'true' THEN 'true' WHEN 'false' THEN 'false'
        END, CASE WHEN o.type IN ('integer', 'real') THEN CAST(o.value AS REAL) END
    FROM found o JOIN fields f ON f.collection = o.collection AND f.name = o.name;
DROP TABLE found;
{end}
{if postgres}
CREATE TEMP TABLE readable ON COMMIT DROP AS
    SELECT id, collection, metadata FROM sources WHERE position('\u0000' IN CAST(metadata AS text)) = 0;
CREATE TEMP TABLE found ON COMMIT DROP AS
    SELECT s.id, s.collection, j.key AS name, j.value #>> '{}' AS value, json_typeof(j.value) AS type
    FROM readable s, json_each(s.metadata) j WHERE json_typeof(j.value) IN ('string', 'number', 'boolean')
    UNION ALL
    SELECT s.id, s.collection, j.key, m.value #>> '{}', json_typeof(m.value)
    FROM readable s, json_each(s.metadata) j,
        json_array_elements(CASE json_typeof(j.value) WHEN 'array' THEN j.value ELSE '[]' END) WITH ORDINALITY m (value, place)
    WHERE m.place <= 100 AND json_typeof(m.value) IN ('string', 'number', 'boolean');
DELETE FROM found WHERE position(chr(1) IN name) > 0;
UPDATE found SET name = name || chr(1) WHERE type = 'boolean';
INSERT INTO fields (collection, name) SELECT DISTINCT collection, name FROM found;
INSERT INTO facts (source_id, field, text, number)
    SELECT o.id, f.id, CASE WHEN o.type <> 'number' THEN substr(o.value, 1, 40) END,
        CASE WHEN o.type = 'number' THEN CAST(o.value AS DOUBLE PRECISION) END
    FROM found o JOIN fields f ON f.collection = o.collection AND f.name = o.name;
{end}
CREATE INDEX facts_text ON facts (field, text, source_id) WHERE text IS NOT NULL;
CREATE INDEX facts_number ON facts (field, number, source_id) WHERE number IS NOT NULL;
CREATE INDEX facts_source ON facts (source_id);
