"""`almanac quota`: monthly quotas of an organisation."""

from typing import Annotated, Any

import typer

from almanac.cli.support.options import Json, OrgName, command_group
from almanac.cli.support.output import print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.identity import orgs
from almanac.quotas import monthly_quotas

quota_app = command_group("Monthly quotas of an organisation.")

_UNLIMITED = "unlimited"
_MAX_DIGITS = 15


@quota_app.command("set")
@database_command
async def set_quota(
    db: Database,
    metric: Annotated[str, typer.Argument(metavar="METRIC", help=f"{', '.join(monthly_quotas.METRICS)}.")],
    number: Annotated[str, typer.Argument(metavar="NUMBER", help=f"A month, or '{_UNLIMITED}'.")],
    org: OrgName = None,
) -> None:
    """Set the maximum that an organisation may use of a metric in a UTC month. It applies from the next call on.

    Example: [bold]almanac quota set knowledge_stored 10000 --org Acme[/bold]
    """
    limit = _parse_limit(number)
    organisation = await orgs.get_by_name(db, org)
    await db.write(lambda tx: monthly_quotas.set_monthly_limit(tx, organisation.id, metric, limit))


@quota_app.command("list")
@database_command
async def list_quotas(db: Database, settings: Settings, org: OrgName = None, as_json: Json = False) -> None:
    """Show the monthly quotas of an organisation, and its usage in this month.

    Example: [bold]almanac quota list --json[/bold]
    """
    org_id = (await orgs.get_by_name(db, org)).id
    rows: list[dict[str, Any]] = []
    for name, default in monthly_quotas.default_limits(settings).items():
        quota = await monthly_quotas.get(db, org_id, name, default)
        most, left = (_UNLIMITED if value is None else value for value in (quota.limit, quota.left))
        rows.append({"metric": name, "most": most, "used": quota.used, "left": left})
    print_rows(rows, as_json, empty="")


def _parse_limit(text: str) -> int | None:
    if text == _UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise BadRequest(f"{text[:20]!r} is not a number of uses.", remedy=f"Give a whole number, or {_UNLIMITED!r}.")
    return int(text)
