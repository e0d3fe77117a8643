-- Tags are facts too, under a key that no metadata can have: what leads a filter to the few sources with a tag.
{if sqlite}
CREATE TEMP TABLE found AS
    SELECT s.id, s.collection, j.value FROM sources s, json_each(s.tags) j WHERE j.type = 'text' AND instr(s.tags, '\u0000') = 0;
INSERT INTO fields (collection, name) SELECT DISTINCT collection, char(2) FROM found;
INSERT INTO facts (source_id, field, text)
    SELECT o.id, f.id, substr(o.value, 1, 40) FROM found o JOIN fields f ON f.collection = o.collection AND f.name = char(2);
DROP TABLE found;
{end}
{if postgres}
CREATE TEMP TABLE found ON COMMIT DROP AS
    SELECT s.id, s.collection, j.value FROM sources s, json_array_elements(s.tags) j (value)
    WHERE position('\u0000' IN CAST(j.value AS text)) = 0;
INSERT INTO fields (collection, name) SELECT DISTINCT collection, chr(2) FROM found;
INSERT INTO facts (source_id, field, text)
    SELECT o.id, f.id, substr(o.value #>> '{}', 1, 40) FROM found o
    JOIN fields f ON f.collection = o.collection AND f.name = chr(2);
ANALYZE facts;  -- or the next searches would be planned as if there were none
{end}

{if sqlite}
-- SQLite has taken an index that is not only for these, and read all of a collection to find that there are none.
DROP INDEX sources_unembedded;
CREATE INDEX sources_unembedded ON sources (collection, is_embedded, id);
{end}

-- Vectors of an organisation's notes lie together, whatever has become of the notes.
UPDATE vectors SET collection = replace(replace(collection, ':superseded', ''), ':expired', '')
    WHERE collection LIKE 'memory:%:%';
