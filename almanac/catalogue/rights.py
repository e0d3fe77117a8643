"""Who may change a catalogue: it is the organisation's, so everyone in it reads it, and whoever was given the role of a
Developer on it, or is an administrator, writes. Reading needs no question: what is read is the caller's own
organisation's, by every statement of this slice."""

from almanac.core.call import Call
from almanac.core.database import Reader
from almanac.identity import access
from almanac.identity.access import ProtectedObject


def thing(org_id: str) -> ProtectedObject:
    """What the access rules see of a catalogue."""
    return ProtectedObject("catalogue", org_id, org_id, "organization")


async def require_write(db: Reader, call: Call) -> None:
    """Refuse whoever may not change the catalogue."""
    await access.require(db, call, "write", thing(call.actor.org_id), name="the catalogue")
