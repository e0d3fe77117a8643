"""Attempts to leave a query: each must be refused by the check of the tree.

Those in `ATTACKS` also run in a confined child without that check. `{secret}`, `{dataset}` and `{new}` are the paths of
a foreign file, of another dataset and of a file that does not exist; `{file}` is the dataset's own; a server listens on
`{port}`.
"""

FILES = {
    "read a text file": "SELECT * FROM read_text('{secret}')",
    "read a blob": "SELECT * FROM read_blob('{secret}')",
    "read a CSV file": "SELECT * FROM read_csv('{secret}')",
    "read a CSV file with auto detection": "SELECT * FROM read_csv_auto('{secret}')",
    "read a JSON file": "SELECT * FROM read_json('{secret}')",
    "read JSON objects": "SELECT * FROM read_json_objects('{secret}')",
    "read NDJSON": "SELECT * FROM read_ndjson_objects('{secret}')",
    "read another dataset": "SELECT * FROM read_parquet('{dataset}')",
    "read several datasets": "SELECT * FROM read_parquet(['{file}', '{dataset}'])",
    "scan another dataset": "SELECT * FROM parquet_scan('{dataset}')",
    "read the metadata of a dataset": "SELECT * FROM parquet_metadata('{dataset}')",
    "read the schema of a dataset": "SELECT * FROM parquet_schema('{dataset}')",
    "read the keys of a dataset": "SELECT * FROM parquet_kv_metadata('{dataset}')",
    "read a file by its name": "SELECT * FROM '{secret}'",
    "read a dataset by its name": "SELECT * FROM '{dataset}'",
    "read a dataset by a quoted name": 'SELECT * FROM "{dataset}"',
    "list files": "SELECT * FROM glob('/etc/*')",
    "list processes": "SELECT * FROM read_text('/proc/*/environ')",
    "read the environment": "SELECT * FROM read_text('/proc/self/environ')",
    "read the memory map": "SELECT * FROM read_text('/proc/self/maps')",
    "read standard input": "SELECT * FROM read_text('/dev/stdin')",
    "read the request": "SELECT * FROM read_blob('/proc/self/fd/3')",
    "sniff a CSV file": "SELECT * FROM sniff_csv('{secret}')",
    "write a file": "COPY (SELECT 1) TO '{new}'",
    "write a Parquet file": "COPY (SELECT 1) TO '{new}' (FORMAT parquet)",
    "overwrite the dataset": "COPY (SELECT 1 AS a) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
    "overwrite another dataset": "COPY (SELECT 1 AS a) TO '{dataset}' (FORMAT parquet, USE_TMP_FILE false)",
    "copy from a file": "COPY sales FROM '{secret}'",
    "export": "EXPORT DATABASE '{new}'",
    "import": "IMPORT DATABASE '{new}'",
    "attach": "ATTACH '{new}' AS x",
    "attach for reading": "ATTACH '{secret}' AS x (READ_ONLY)",
    "attach another engine": "ATTACH '{secret}' AS x (TYPE sqlite)",
    "write a profile": "PRAGMA profile_output='{new}'",
}
NETWORK = {
    "read from a URL": "SELECT * FROM read_csv('http://127.0.0.1:{port}/x.csv')",
    "read Parquet from a URL": "SELECT * FROM 'http://127.0.0.1:{port}/x.parquet'",
    "read from S3": "SELECT * FROM read_parquet('s3://bucket/key')",
    "install an extension": "INSTALL httpfs",
    "install an extension from a URL": "INSTALL x FROM 'http://127.0.0.1:{port}'",
    "install a community extension": "INSTALL x FROM community",
    "load an extension": "LOAD httpfs",
    "load a file": "LOAD '{secret}'",
    "attach a server": "ATTACH 'host=127.0.0.1 port={port}' AS x (TYPE postgres)",
    "create a secret": "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
}
SETTINGS = {
    "allow external access": "SET enable_external_access = true",
    "unlock the settings": "SET lock_configuration = false",
    "allow a path": "SET allowed_paths = ['{secret}']",
    "allow a folder": "SET allowed_directories = ['/']",
    "raise the memory limit": "SET memory_limit = '100GB'",
    "raise the time limit": "SET max_execution_time = 0",
    "set more threads": "SET threads = 64",
    "set a temporary folder": "SET temp_directory = '/tmp'",
    "reset a setting": "RESET lock_configuration",
    "set by PRAGMA": "PRAGMA memory_limit='100GB'",
    "allow unsigned extensions": "SET allow_unsigned_extensions = true",
    "set a variable": "SET VARIABLE x = 1",
    "log queries to a file": "SET log_query_path = '{new}'",
    "search for files elsewhere": "SET file_search_path = '/etc'",
}
CATALOGUE = {
    "read the settings": "SELECT * FROM duckdb_settings()",
    "read one setting": "SELECT current_setting('allowed_paths')",
    "read the secrets": "SELECT * FROM duckdb_secrets()",
    "read the tables": "SELECT * FROM duckdb_tables()",
    "read the columns": "SELECT * FROM duckdb_columns()",
    "read the views": "SELECT * FROM duckdb_views()",
    "read the schema": "SELECT * FROM information_schema.tables",
    "read pg_catalog": "SELECT * FROM pg_catalog.pg_class",
    "read pg_class": "SELECT * FROM pg_class",
    "read the master table": "SELECT * FROM sqlite_master",
    "read the databases": "SELECT * FROM duckdb_databases()",
    "read the memory use": "SELECT * FROM duckdb_memory()",
    "read the logs": "SELECT * FROM duckdb_logs",
    "read the table of a database": "SELECT * FROM memory.main.sales",
    "read a table of ours by its internal name": "SELECT * FROM almanac_table_0",
    "read a table by a function": "SELECT * FROM query_table('sales')",
    "read a text as a query": "SELECT * FROM query('SELECT 1')",
    "read the environment by a function": "SELECT getenv('HOME')",
    "read a variable": "SELECT getvariable('x')",
    "read the version": "SELECT version()",
    "read the current user": "SELECT current_user",
    "read the current schema": "SELECT current_schema()",
    "read the current query": "SELECT current_query()",
    "read the types of all functions": "SELECT * FROM duckdb_functions()",
    "read a sequence": "SELECT nextval('s')",
    "show tables": "SHOW TABLES",
    "show all": "SHOW ALL TABLES",
    "describe": "DESCRIBE sales",
    "summarise": "SUMMARIZE sales",
    "explain": "EXPLAIN SELECT 1",
    "explain and run": "EXPLAIN ANALYZE SELECT 1",
}
STATEMENTS = {
    "two statements": "SELECT 1; SELECT 2",
    "a statement after a query": "SELECT 1; DROP TABLE sales",
    "a statement after a comment": "SELECT 1 /* ; */ ; ATTACH 'x'",
    "create a table": "CREATE TABLE x AS SELECT 1",
    "create a view": "CREATE VIEW x AS SELECT * FROM sales",
    "create a macro": "CREATE MACRO abs(x) AS x",
    "create a function": "CREATE FUNCTION f(x) AS x",
    "create a type": "CREATE TYPE x AS ENUM ('a')",
    "insert": "INSERT INTO sales VALUES (1)",
    "update": "UPDATE sales SET amount = 1",
    "delete": "DELETE FROM sales",
    "delete in a part": "WITH x AS (DELETE FROM sales RETURNING *) SELECT * FROM x",
    "drop": "DROP TABLE sales",
    "alter": "ALTER TABLE sales ADD COLUMN x INT",
    "truncate": "TRUNCATE sales",
    "call": "CALL pragma_version()",
    "pragma": "PRAGMA database_list",
    "pragma as a function": "SELECT * FROM pragma_database_size()",
    "begin": "BEGIN",
    "checkpoint": "CHECKPOINT",
    "vacuum": "VACUUM",
    "prepare": "PREPARE x AS SELECT 1",
    "execute": "EXECUTE x",
    "use": "USE memory",
    "detach": "DETACH memory",
    "comment on": "COMMENT ON TABLE sales IS 'x'",
    "select into": "SELECT * INTO x FROM sales",
    "a merge": "MERGE INTO sales USING sales AS s ON true WHEN MATCHED THEN DELETE",
}
FUNCTIONS = {
    "an aliased function": "SELECT system.main.read_text('{secret}')",
    "a function with a schema": "SELECT pg_catalog.version()",
    "a function as a method": "SELECT ('{secret}').read_text()",
    "a function of a list by name": "SELECT list_aggregate([1], 'sum')",
    "a quoted function": "SELECT \"read_text\"('{secret}')",
    "a function in other case": "SELECT * FROM Read_Text('{secret}')",
    "a function in a part": "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
    "a function in a subquery": "SELECT (SELECT content FROM read_text('{secret}'))",
    "a function in a condition": "SELECT 1 WHERE EXISTS (SELECT * FROM read_text('{secret}'))",
    "a function in a union": "SELECT '1' UNION ALL SELECT content FROM read_text('{secret}')",
    "a function in a join": "SELECT * FROM sales JOIN read_text('{secret}') ON true",
    "a function in VALUES": "SELECT * FROM (VALUES (getenv('HOME')))",
    "a function in ORDER BY": "SELECT 1 ORDER BY getenv('HOME')",
    "a function in LIMIT": "SELECT 1 LIMIT (SELECT count(*) FROM read_text('{secret}'))",
    "a function in a window": "SELECT sum(1) OVER (ORDER BY getenv('HOME'))",
    "a function in a lambda": "SELECT list_transform([1], lambda x: getenv('HOME'))",
    "a function after a comment": "SELECT * FROM/**/read_text/**/('{secret}')",
    "a function with full-width letters": "SELECT * FROM ｒｅａｄ＿ｔｅｘｔ('{secret}')",
    "a random number": "SELECT random()",
    "a UUID": "SELECT uuid()",
    "an error with a value": "SELECT error(secret) FROM sales",
    "columns by a pattern": "SELECT COLUMNS('.*') FROM sales",
    "a parameter": "SELECT $1",
    "a cast to a catalogue type": "SELECT 'sales'::regclass",
    "a cast to a type of the caller": "SELECT 1::my_type",
    "a sleep": "SELECT pg_sleep(100)",
    "a pivot": "PIVOT sales ON region USING sum(amount)",
    "a sample": "SELECT * FROM sales TABLESAMPLE 10%",
    "a position in the file": "SELECT file_row_number, filename FROM sales",
    "a row id": "SELECT rowid FROM sales",
}
COSTS = {
    "a long repeat": "SELECT length(repeat('x', 2000000000))",
    "a repeat by a field": "SELECT repeat('x', count) FROM sales",
    "a long pad": "SELECT length(lpad('x', 2000000000, 'y'))",
    "a huge range": "SELECT count(*) FROM range(100000000000000)",
    "a huge series": "SELECT sum(x) FROM generate_series(1, 1000000000000) AS t(x)",
    "a huge list": "SELECT len(range(100000000000))",
    "a series without end": "SELECT * FROM range(0, 10, 0)",
    "a series by a subquery": "SELECT len(range((SELECT 100000000000)))",
    "an endless recursion": "WITH RECURSIVE x AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM x) SELECT count(*) FROM x",
    "a recursion that doubles": (
        "WITH RECURSIVE x AS (SELECT 'x' AS a UNION ALL SELECT a || a FROM x) SELECT max(length(a)) FROM x"
    ),
    "deep nesting": "SELECT " + "(" * 500 + "1" + ")" * 500,
    "many operators": "SELECT 1" + " + 1" * 5000,
    "many signs": "SELECT " + "- " * 4000 + "1",
    "deep functions": "SELECT " + "abs(" * 300 + "1" + ")" * 300,
    "deep subqueries": "SELECT * FROM " + "(SELECT * FROM " * 200 + "sales" + ")" * 200,
    "many casts": "SELECT 1" + "::INT" * 2000,
    "a wide row": "SELECT " + ", ".join(["1"] * 10_000),
    "a huge text": "SELECT '" + "x" * 100_000 + "'",
    "a huge number": "SELECT " + "9" * 10_000,
    "a null character": "SELECT 'a\0b'",
    "a printf with a width": "SELECT printf('%1000000000d', 1)",
    "a format with a width": "SELECT format('{{:>1000000000}}', 1)",
    "a list of any size": "SELECT list_resize([1], 1000000000000, 0)",
    "a bar": "SELECT bar(1, 0, 1, 1000000000)",
}

ESCAPES = {**FILES, **NETWORK, **SETTINGS, **CATALOGUE, **STATEMENTS, **FUNCTIONS, **COSTS}

# The engine accepts these, and no wall has to stop them: they reveal or change nothing outside of the child's memory.
HARMLESS = {"set a variable"}

ATTACKS = {**FILES, **NETWORK, **SETTINGS}

# Allowed by the check of the tree, but costly: the limits of the child must end them.
COSTLY = {
    "a large product": "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = 7",
    "a text that doubles": (
        "WITH a AS (SELECT repeat('x', 10000) AS t), "
        + ", ".join(f"{chr(98 + n)} AS (SELECT t || t || t || t AS t FROM {chr(97 + n)})" for n in range(12))
        + " SELECT length(t) FROM m"
    ),
    "a list of all pairs": "SELECT list([a.range, b.range]) FROM range(100000) a, range(100000) b",
    "a sort of many texts": (
        "SELECT a.range, repeat('x', 10000) AS t FROM range(1000000) a ORDER BY hash(a.range), t DESC"
    ),
    "groups without number": (
        "SELECT a.range * 1000000 + b.range AS k, count(*) FROM range(1000000) a, range(1000) b GROUP BY 1"
    ),
    "an exploding regular expression": (
        "SELECT count(*) FROM range(1000000) WHERE regexp_matches(repeat('a', 10000), '(a?){1000}(a*)*b')"
    ),
    "joins without a condition": "SELECT 1 FROM sales" + " JOIN sales" * 40,
    "a wide result": "SELECT repeat('x', 10000) AS t FROM range(100000)",
}
