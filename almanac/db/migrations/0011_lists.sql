-- Which list leads to a passage: that tells what it is worth at most before it is read.

{if postgres}
DROP FUNCTION matching(INTEGER[], INTEGER);
CREATE FUNCTION matching(wanted INTEGER[], together INTEGER)
    RETURNS TABLE (first INTEGER, passage_id BIGINT, source_id BIGINT)  -- the first of the lists followed together
    LANGUAGE sql STABLE ROWS 4000
    SET enable_seqscan = off SET enable_indexscan = off SET jit = off
    AS $$
        SELECT first, t.passage_id, t.source_id FROM generate_series(1, cardinality(wanted), together) AS first
        JOIN terms t ON t.terms && wanted[first : first + together - 1]
    $$;
{end}
