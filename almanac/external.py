"""What a deployment may import to fit the external knowledge surface to its own gateway.

Name a module of yours in `EXTERNAL_KNOWLEDGE_MCP_EXTENSION`; it is imported before the server takes its first request.
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
