{if postgres}
-- Some of what lists too long to follow lead to, as it comes.
CREATE FUNCTION some_matching(wanted INTEGER[], most INTEGER) RETURNS TABLE (passage_id BIGINT, source_id BIGINT)
    LANGUAGE sql STABLE ROWS 1000
    SET enable_seqscan = off SET enable_indexscan = off SET jit = off
    AS $$ SELECT t.passage_id, t.source_id FROM terms t WHERE t.terms && wanted LIMIT most $$;
{end}
