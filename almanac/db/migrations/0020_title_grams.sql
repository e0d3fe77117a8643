-- Every part of a title of a note, so that a search finds any part of one: for each character the three that begin there
-- (fewer at the end), with the letters A to Z in lower case. Each is a number of 21 bits for a character.

CREATE TABLE title_scopes (
    number      {id},                     -- short, because each part of a title has it
    collection  TEXT NOT NULL UNIQUE REFERENCES collections (name)
);
INSERT INTO title_scopes (collection) SELECT name FROM collections WHERE name LIKE 'memory:%' ORDER BY name;

{if sqlite}
CREATE TABLE title_grams (
    scope      BIGINT NOT NULL,
    gram       BIGINT NOT NULL,
    source_id  BIGINT NOT NULL,
    PRIMARY KEY (scope, gram, source_id)
) WITHOUT ROWID;
INSERT OR IGNORE INTO title_grams (scope, gram, source_id)
    WITH RECURSIVE places (place) AS (SELECT 1 UNION ALL SELECT place + 1 FROM places WHERE place < 1000)
    SELECT t.number, (unicode(substr(t.title, place, 1)) << 42) + (coalesce(unicode(substr(t.title, place + 1, 1)), 0) << 21)
        + coalesce(unicode(substr(t.title, place + 2, 1)), 0), t.id
    FROM (SELECT c.number, s.id, lower(s.title) AS title FROM sources s JOIN title_scopes c ON c.collection = s.collection) t
        JOIN places ON place <= length(t.title);
{end}
{if postgres}
CREATE TABLE title_grams (
    scope      BIGINT NOT NULL,
    gram       BIGINT NOT NULL,
    source_id  BIGINT NOT NULL,
    PRIMARY KEY (scope, gram, source_id)
);
INSERT INTO title_grams (scope, gram, source_id)
    SELECT DISTINCT t.number, (CAST(ascii(substr(t.title, place, 1)) AS BIGINT) << 42)
        + (CAST(ascii(substr(t.title, place + 1, 1)) AS BIGINT) << 21) + ascii(substr(t.title, place + 2, 1)), t.id
    FROM (SELECT c.number, s.id, lower(s.title COLLATE "C") AS title
          FROM sources s JOIN title_scopes c ON c.collection = s.collection) t,
        generate_series(1, length(t.title)) AS place;
ANALYZE title_grams;
{end}
