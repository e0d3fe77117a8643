"""Public functions that adapt the external knowledge surface to the gateway of a deployment.

Name your module in `EXTERNAL_KNOWLEDGE_MCP_EXTENSION`. The server imports it before its first request.
"""

from almanac.surfaces.external.auth import (
    ExternalKnowledgeCreatorInfo,
    ExternalKnowledgeUser,
    find_user,
    set_external_knowledge_auth_handler,
    set_external_knowledge_creator_resolver,
)

__all__ = [
    "ExternalKnowledgeCreatorInfo",
    "ExternalKnowledgeUser",
    "find_user",
    "set_external_knowledge_auth_handler",
    "set_external_knowledge_creator_resolver",
]
