"""The stages of an operation in plain language: its check, the quota of agent calls and the record."""

from typing import Any

from almanac.audit.agent_executions import RunningExecution
from almanac.core.errors import AlmanacError
from almanac.operations.context import RequestContext
from almanac.operations.operation import AgentUse, Operation
from almanac.quotas import monthly_quotas


async def run(ctx: RequestContext, operation: Operation, use: AgentUse, raw: dict[str, Any], arguments: Any) -> Any:
    """Check the prompt, count the call, run the operation, and keep prompt and answer for the record."""
    prompt = raw.get(use.prompt)
    execution = RunningExecution(prompt if isinstance(prompt, str) else "")
    if not use.only_with_model:
        ctx.execution = execution
    try:
        if use.check is not None:
            use.check(execution.prompt)
        if use.is_metered:
            await _count(ctx)
        execution.answer = await operation.handler(ctx, arguments)
    except AlmanacError as error:
        execution.answer = error.text
        raise
    finally:
        if ctx.has_used_model:
            ctx.execution = execution
    return execution.answer


async def _count(ctx: RequestContext) -> None:
    """Count a call against the quota of the organisation before it runs, so that none of two callers exceeds it.

    A call that fails later has been counted: otherwise a client could disconnect before each answer and never pay.
    """
    org_id, metric = ctx.actor.org_id, monthly_quotas.AGENT_CALLS
    default = ctx.app.settings.agent_calls_a_month
    limit = await monthly_quotas.monthly_limit(ctx.db, org_id, metric, default)
    await monthly_quotas.check(ctx.db, org_id, metric, limit)
    await ctx.db.write(lambda tx: monthly_quotas.consume(tx, org_id, metric, 1, limit))
