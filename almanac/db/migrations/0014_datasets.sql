-- Datasets: tables of rows, in immutable Parquet files, with versions.

CREATE TABLE datasets (
    id           {id},
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    owner_id     BIGINT NOT NULL REFERENCES principals (id),
    name         TEXT NOT NULL,
    folded       TEXT NOT NULL,           -- the name in small letters: unique in the organisation
    description  TEXT NOT NULL,
    notes        {json} NOT NULL,         -- by field: label, description, unit, synonyms, and a declared type
    version      BIGINT NOT NULL,         -- the current one; 0: without rows or fields yet
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,         -- of the last change of rows, name, description or notes
    removed_at   BIGINT                   -- in the trash since
);
CREATE UNIQUE INDEX datasets_name ON datasets (org_id, folded) WHERE removed_at IS NULL;
CREATE INDEX datasets_owner ON datasets (owner_id);
CREATE INDEX datasets_removed ON datasets (removed_at) WHERE removed_at IS NOT NULL;

CREATE TABLE dataset_versions (
    dataset_id   BIGINT NOT NULL REFERENCES datasets (id),
    number       BIGINT NOT NULL,
    change       TEXT NOT NULL CHECK (change IN ('append', 'replace', 'upsert', 'expire', 'restore', 'compact')),
    fields       {json} NOT NULL,         -- names and types, in order
    row_count    BIGINT NOT NULL,
    digest       TEXT NOT NULL,           -- SHA-256 over the fields and the hashes of the files
    author_id    BIGINT REFERENCES principals (id),
    created_at   BIGINT NOT NULL,
    push_key     TEXT,                    -- the hash of an idempotency key, for a day
    PRIMARY KEY (dataset_id, number)
);
CREATE UNIQUE INDEX dataset_versions_push_key ON dataset_versions (dataset_id, push_key) WHERE push_key IS NOT NULL;
CREATE INDEX dataset_versions_created ON dataset_versions (created_at);

-- A file belongs to the versions from `first_version` up to, and without, `end_version`.
CREATE TABLE dataset_files (
    id             {id},
    dataset_id     BIGINT NOT NULL REFERENCES datasets (id),
    blob_id        BIGINT NOT NULL REFERENCES blobs (id),
    fields         {json} NOT NULL,       -- as they are in the file; versions may have wider types
    row_count      BIGINT NOT NULL,
    first_version  BIGINT NOT NULL,
    end_version    BIGINT                 -- NULL: also in the current version
);
CREATE INDEX dataset_files_current ON dataset_files (dataset_id, id) WHERE end_version IS NULL;
CREATE INDEX dataset_files_past ON dataset_files (dataset_id, end_version) WHERE end_version IS NOT NULL;
CREATE INDEX dataset_files_blob ON dataset_files (blob_id);

-- What a person, an agent or the members of a group see of a dataset. Several rules narrow each other.
CREATE TABLE row_rules (
    id            {id},
    dataset_id    BIGINT NOT NULL REFERENCES datasets (id),
    principal_id  BIGINT REFERENCES principals (id),
    group_id      BIGINT REFERENCES groups (id),
    condition     TEXT NOT NULL,          -- SQL over the fields of a row; empty: all rows
    hidden        {json} NOT NULL,        -- the names of hidden fields
    creator_id    BIGINT NOT NULL REFERENCES principals (id),
    created_at    BIGINT NOT NULL,
    CHECK ((principal_id IS NULL) <> (group_id IS NULL))
);
CREATE UNIQUE INDEX row_rules_principal ON row_rules (dataset_id, principal_id) WHERE principal_id IS NOT NULL;
CREATE UNIQUE INDEX row_rules_group ON row_rules (dataset_id, group_id) WHERE group_id IS NOT NULL;
