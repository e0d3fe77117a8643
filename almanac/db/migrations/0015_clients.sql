-- Clients that log in, and MCP tokens that work at MCP endpoints only.

-- The kind was a label until now. Such tokens keep what they can do under the label that still has no further meaning.
UPDATE tokens SET kind = 'access' WHERE kind = 'mcp';
-- A user has one MCP token.
CREATE UNIQUE INDEX tokens_mcp ON tokens (principal_id) WHERE kind = 'mcp' AND revoked_at IS NULL;

CREATE TABLE clients (
    id            {id},
    principal_id  BIGINT NOT NULL REFERENCES principals (id),
    client_id     TEXT NOT NULL UNIQUE,
    hash          {bytes} NOT NULL,
    created_at    BIGINT NOT NULL,
    revoked_at    BIGINT,
    last_used_at  BIGINT
);
CREATE INDEX clients_principal ON clients (principal_id);

-- The client whose login made the token.
ALTER TABLE tokens ADD COLUMN client BIGINT REFERENCES clients (id);
CREATE INDEX tokens_client ON tokens (client) WHERE client IS NOT NULL;
CREATE INDEX tokens_login ON tokens (expires_at) WHERE kind = 'login';
