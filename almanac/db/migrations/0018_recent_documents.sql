-- The newest documents of a knowledge base, for the list of resources.

CREATE INDEX documents_of_base ON documents (base_id, id) WHERE removed_at IS NULL;
