"""The description of the REST endpoints as OpenAPI 3.1, made from the table that serves them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from almanac import __version__
from almanac.web.rest import PREFIX, Endpoint

PATH = f"{PREFIX}/openapi.json"
_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "description": "What went wrong, and what to do about it.",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
}
# What every endpoint may answer, whatever it does.
_REFUSALS = {
    "400": "Something in the request is not what is taken here; the message names it.",
    "401": "No valid credential came with the request.",
    "403": "The role, or the token's scopes and limits, do not allow it.",
    "404": "There is no such thing, or you may not see it.",
    "413": "More than is accepted, or than can be answered at once.",
    "415": "A content type that is not taken, or cannot be sent as asked.",
    "421": "The Host is not one of this server's names.",
    "429": "Too many requests; Retry-After says how many seconds to wait.",
    "500": "A fault of the server's own; an operator can find it by x-request-id.",
    "503": "Something the server needs cannot be reached; try again.",
    "504": "It took longer than the server allows.",
}
_WRITE_REFUSALS = {"408": "The body did not arrive in time.", "409": "It clashes with what is there."}
_CONTENT_REFUSALS = {
    "422": "The address is not one that the server fetches from.",
    "502": "What is at the address could not be fetched.",
    "507": "There is no room left to store the file.",
}


def route(endpoints: Sequence[Endpoint], at: str = PREFIX, prefix: str = PREFIX) -> Route:
    """Where the description is served. It says nothing of anyone's data, and so needs no token."""
    written: list[bytes] = []

    async def serve(_: Request) -> Response:
        if not written:
            written.append(orjson.dumps(describe(endpoints, prefix)))
        return Response(written[0], media_type="application/json")

    return Route(f"{at}/openapi.json", serve, methods=["GET"])


def describe(endpoints: Sequence[Endpoint], prefix: str = PREFIX) -> dict[str, Any]:
    """The whole description."""
    schemas, components = _schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Almanac",
            "version": __version__,
            "description": "Knowledge bases with their documents, and the catalogue.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "access": {"type": "apiKey", "in": "header", "name": "X-Access-Key"},
                "download": {"type": "apiKey", "in": "header", "name": "X-Almanac-Download-Token"},
                "link": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


def parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """What an endpoint takes in its path and its query."""
    schema = cast("dict[str, Any]", _plain(endpoint.parameters.model_json_schema()))
    required = schema.get("required", [])
    return [_parameter(endpoint, name, each, name in required) for name, each in schema["properties"].items()]


def fields(model: Any) -> dict[str, dict[str, Any]]:
    """The fields of a body or an answer, each with its schema and whether it is always there."""
    schema = cast("dict[str, Any]", _plain(TypeAdapter(model).json_schema()))
    if "$ref" in schema:  # a type that holds itself
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return {name: {**each, "required": name in required} for name, each in schema.get("properties", {}).items()}


def _parameter(endpoint: Endpoint, name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    in_path = f"{{{name}}}" in endpoint.path
    if "anyOf" in schema:  # what may be left out is null within, but a query string has no way to say so
        schema = next(each for each in schema["anyOf"] if each != {"type": "null"})
    described = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": "path" if in_path else "query", "required": required, **described, "schema": schema}


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """The schema of each type that endpoints take or give, and of what those refer to."""
    taken = {endpoint.body for endpoint in endpoints if endpoint.body is not None}
    given = {endpoint.answer for endpoint in endpoints if endpoint.answer not in (None, bytes)}
    inputs: list[tuple[Any, Any, Any]] = [
        *((model, "validation", TypeAdapter(model)) for model in sorted(taken, key=lambda model: model.__name__)),
        *((model, "serialization", TypeAdapter(model)) for model in sorted(given, key=lambda model: model.__name__)),
    ]
    found, rest = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    return {model: _plain(schema) for (model, _), schema in found.items()}, _plain(rest.get("$defs", {}), names=True)


def _operation(endpoint: Endpoint, schemas: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"Needs the scope {endpoint.scope}.",
        "tags": [endpoint.path.split("/")[1]],
    }
    if found := parameters(endpoint):
        operation["parameters"] = found
    if endpoint.body is not None:
        operation["requestBody"] = _body(endpoint, schemas)
    if endpoint.credentials:
        operation["security"] = [{name: []} for name in endpoint.credentials]
    return {**operation, "responses": _responses(endpoint, schemas)}


def _body(endpoint: Endpoint, schemas: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    assert endpoint.body is not None
    content: dict[str, Any] = {kind: {"schema": dict(schema)} for kind, schema in endpoint.forms.items()}
    shown = {} if endpoint.example is None else {"example": dict(endpoint.example)}
    content["application/json"] = {"schema": schemas[endpoint.body], **shown}
    is_needed = bool(endpoint.forms) or any(field.is_required() for field in endpoint.body.model_fields.values())
    return {"required": is_needed, "content": content}


def _responses(endpoint: Endpoint, schemas: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": _meaning(endpoint)}
    if endpoint.answer is bytes:
        good["content"] = {"*/*": {}}
    elif endpoint.answer is not None:
        shown = {"example": dataclasses.asdict(endpoint.shows)} if endpoint.shows is not None else {}
        good["content"] = {"application/json": {"schema": schemas[endpoint.answer], **shown}}
    found = {str(endpoint.status): good}
    found |= {str(status): {**good, "description": said} for status, said in endpoint.statuses.items()}
    refusals = {
        **_REFUSALS,
        **(_WRITE_REFUSALS if endpoint.method != "GET" else {}),
        **(_CONTENT_REFUSALS if endpoint.forms else {}),
    }
    wrong = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return found | {status: {"description": said, "content": wrong} for status, said in sorted(refusals.items())}


def _meaning(endpoint: Endpoint) -> str:
    if endpoint.answer is None:
        return "Done; there is nothing to tell."
    if endpoint.answer is bytes:
        return "The file as it came."
    return " ".join((endpoint.answer.__doc__ or "").split())


def _plain(node: Any, names: bool = False) -> Any:
    """Without the titles that pydantic makes of names, and without the docstrings' line breaks."""
    if isinstance(node, dict):
        return {
            key: _plain(value, key in ("properties", "$defs"))
            for key, value in cast("dict[str, Any]", node).items()
            if names or key != "title"
        }
    if isinstance(node, list):
        return [_plain(item) for item in cast("list[Any]", node)]
    return re.sub(r"\s+", " ", node) if isinstance(node, str) else node
