-- Keepers of the lighthouse and their nights.
CREATE TABLE keepers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS watches (
    keeper INTEGER REFERENCES keepers (id),
    night DATE NOT NULL
);

CREATE OR REPLACE VIEW busiest AS
SELECT keeper, count(*) AS nights FROM watches GROUP BY keeper;

INSERT INTO keepers (id, name) VALUES (1, 'Oddny');
