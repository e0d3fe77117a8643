"""The parameters of a query string."""

from urllib.parse import parse_qsl

from almanac.core.errors import BadRequest
from almanac.net.http_exchange import HttpExchange

MAX_QUERY_PARAMETERS = 50


def read_query_string(http: HttpExchange) -> dict[str, str]:
    """Return the parameters of the query string. A parameter that appears twice is refused."""
    try:
        pairs = parse_qsl(
            http.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_QUERY_PARAMETERS,
        )
    except ValueError:
        raise BadRequest("The query string cannot be read.", remedy="Send fewer parameters, in UTF-8.") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise BadRequest("A parameter of the query string appears more than once.", remedy="Send it once.")
    return parameters
