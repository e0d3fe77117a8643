-- Knowledge bases, their folders and documents, the files those came as, and the passages that are searched.

CREATE TABLE bases (
    id           {id},
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    level        TEXT NOT NULL CHECK (level IN ('personal', 'group', 'organization')),
    owner_id     BIGINT NOT NULL REFERENCES principals (id),
    group_id     BIGINT REFERENCES groups (id),
    name         TEXT NOT NULL,
    description  TEXT NOT NULL,
    folded       TEXT NOT NULL,           -- name and description, for finding them in any case of letters
    splitter     {json} NOT NULL,         -- how its documents are cut into passages
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    removed_at   BIGINT,                  -- in the trash since
    CHECK ((level = 'group') = (group_id IS NOT NULL))
);
CREATE INDEX bases_org ON bases (org_id, level);
CREATE INDEX bases_owner ON bases (owner_id);
CREATE INDEX bases_group ON bases (group_id);
CREATE INDEX bases_removed ON bases (removed_at) WHERE removed_at IS NOT NULL;

-- A parent is not a foreign key: a tree that was broken by a fault must still be listed.
CREATE TABLE folders (
    id            {id},
    base_id       BIGINT NOT NULL REFERENCES bases (id),
    parent_id     BIGINT NOT NULL,        -- 0: at the top
    name          TEXT NOT NULL,
    creator_id    BIGINT NOT NULL REFERENCES principals (id),
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    removed_at    BIGINT,
    removed_with  BIGINT                  -- the folder it was removed with, and is restored with
);
CREATE UNIQUE INDEX folders_name ON folders (base_id, parent_id, name) WHERE removed_at IS NULL;
CREATE INDEX folders_newest ON folders (base_id, parent_id, created_at, id) WHERE removed_at IS NULL;
CREATE INDEX folders_removed ON folders (removed_at) WHERE removed_at IS NOT NULL;

-- Files by their content. The name is unique to the row, so that removing one file can never remove its successor.
CREATE TABLE blobs (
    id          {id},
    hash        TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL UNIQUE,
    size        BIGINT NOT NULL,
    created_at  BIGINT NOT NULL
);

CREATE TABLE documents (
    id            {id},
    base_id       BIGINT NOT NULL REFERENCES bases (id),
    folder_id     BIGINT NOT NULL,        -- 0: at the top
    name          TEXT NOT NULL,
    source_type   TEXT NOT NULL CHECK (source_type IN ('file', 'text', 'table', 'web', 'code')),
    source_url    TEXT,                   -- where it was fetched from
    extension     TEXT NOT NULL,
    mime_type     TEXT NOT NULL,
    size          BIGINT NOT NULL,
    blob_id       BIGINT NOT NULL REFERENCES blobs (id),
    tags          {json} NOT NULL,
    metadata      {json} NOT NULL,
    is_enabled    BIGINT NOT NULL,
    creator_id    BIGINT NOT NULL REFERENCES principals (id),
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    generation    BIGINT NOT NULL,        -- rises with every new content; results for an older one are dropped
    index_status  TEXT NOT NULL,
    failure       {json},                 -- why, while the status is failed
    removed_at    BIGINT,
    removed_with  BIGINT
);
CREATE UNIQUE INDEX documents_name ON documents (base_id, folder_id, name) WHERE removed_at IS NULL;
CREATE INDEX documents_newest ON documents (base_id, folder_id, created_at, id) WHERE removed_at IS NULL;
CREATE INDEX documents_status ON documents (base_id, index_status) WHERE removed_at IS NULL;
CREATE INDEX documents_unfinished ON documents (updated_at)
    WHERE index_status IN ('queued', 'pending_conversion', 'converting', 'indexing');
CREATE INDEX documents_blob ON documents (blob_id);
CREATE INDEX documents_removed ON documents (removed_at) WHERE removed_at IS NOT NULL;

-- What a document's file was read as. The text is in parts, so that reading a page costs a page.
CREATE TABLE readings (
    document_id  BIGINT PRIMARY KEY REFERENCES documents (id),
    generation   BIGINT NOT NULL,
    title        TEXT NOT NULL,
    characters   BIGINT NOT NULL,
    passages     BIGINT NOT NULL,
    pages        {json} NOT NULL,
    page_count   BIGINT NOT NULL,
    facts        {json} NOT NULL,         -- what the file says of itself: author, language …
    warnings     {json} NOT NULL
);
CREATE TABLE reading_parts (
    document_id  BIGINT NOT NULL REFERENCES readings (document_id),
    part         BIGINT NOT NULL,
    text         TEXT NOT NULL,
    PRIMARY KEY (document_id, part)
);

CREATE TABLE passages (
    id          {id},
    org_id      TEXT NOT NULL,
    collection  TEXT NOT NULL,            -- what searches name: 'base:7'
    owner_kind  TEXT NOT NULL,            -- what the text is of: 'document'
    owner_id    TEXT NOT NULL,
    ordinal     BIGINT NOT NULL,
    parent      BIGINT,                   -- ordinal of the passage around it
    form        TEXT NOT NULL,            -- text, table or code
    text        TEXT NOT NULL,
    span_start  BIGINT NOT NULL,
    span_end    BIGINT NOT NULL,
    headings    {json} NOT NULL,
    page        BIGINT,
    boxes       {json} NOT NULL,
    is_live     BIGINT NOT NULL           -- 0: of something disabled or in the trash
);
CREATE UNIQUE INDEX passages_owner ON passages (owner_kind, owner_id, ordinal);
CREATE INDEX passages_collection ON passages (collection);
