"""The REST operations of the catalogue's vocabulary: aliases, policies, relation types and attachment types."""

from typing import Any

from almanac.catalogue import contract_json, vocabulary
from almanac.operations.context import RequestContext
from almanac.web.catalogue import models


async def list_aliases(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Return the category aliases."""
    return await contract_json.terms(ctx, "alias")


async def list_policies(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Return the policies."""
    return await contract_json.terms(ctx, "policy")


async def list_relation_types(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Return the relation types."""
    return await contract_json.terms(ctx, "relation")


async def list_attachment_types(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Return the attachment types."""
    return await contract_json.terms(ctx, "attachment")


async def add_alias(ctx: RequestContext, _: Any, args: models.NewAlias) -> Any:
    """Create a category alias."""
    return await _add_term(ctx, "alias", args.aliasKey, args.name, args.description)


async def add_policy(ctx: RequestContext, _: Any, args: models.NewPolicy) -> Any:
    """Create a policy."""
    details = args.model_dump(include=set(vocabulary.PolicyDetails.model_fields))
    return await _add_term(ctx, "policy", args.policyKey, args.name, args.description, details)


async def add_relation_type(ctx: RequestContext, _: Any, args: models.NewType) -> Any:
    """Create a relation type."""
    return await _add_term(ctx, "relation", args.typeKey, args.name, args.description)


async def add_attachment_type(ctx: RequestContext, _: Any, args: models.NewType) -> Any:
    """Create an attachment type."""
    return await _add_term(ctx, "attachment", args.typeKey, args.name, args.description)


async def _add_term(
    ctx: RequestContext, kind: str, key: str, name: str, description: str, details: dict[str, Any] | None = None
) -> Any:
    term = await ctx.db.write(lambda tx: vocabulary.add(tx, ctx, kind, key, name, description, details))
    return contract_json.term(term)
