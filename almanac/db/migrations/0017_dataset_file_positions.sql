-- The place of a file in the order of a dataset's rows, where it differs from the id: a merged file takes the place of
-- its parts.

ALTER TABLE dataset_files ADD COLUMN position BIGINT;
