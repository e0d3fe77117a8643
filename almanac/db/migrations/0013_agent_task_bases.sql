-- The knowledge bases of the results behind an answer, as ids with spaces between them. NULL, as in older rows: unknown.

ALTER TABLE agent_tasks ADD COLUMN bases TEXT;
