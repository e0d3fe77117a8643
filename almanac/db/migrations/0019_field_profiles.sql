-- Profiles of the fields of a dataset, made in the background. They are deleted with their version.

CREATE TABLE field_profiles (
    dataset_id  BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    fields      {json} NOT NULL,          -- by field: nulls, distinct values, range, frequent values, histogram
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (dataset_id, version),
    FOREIGN KEY (dataset_id, version) REFERENCES dataset_versions (dataset_id, number) ON DELETE CASCADE
);
