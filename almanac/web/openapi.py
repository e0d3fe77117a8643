"""The description of the REST API as OpenAPI 3.1, generated from the table of operations."""

import re
from collections.abc import Sequence
from typing import Any, cast

import orjson
from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from almanac import __version__
from almanac.core.fair_slots import compute
from almanac.operations.operation import Operation, Rest
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.operations.schemas import Schema, plain_schema
from almanac.web.rest import API_PREFIX

_FILE = {"type": "string", "contentMediaType": "application/octet-stream", "description": "The file itself."}
_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "description": "The problem, and how to solve it.",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
}
# Errors that every endpoint may return.
_REFUSALS = {
    "400": "A part of the request is invalid; the message names it.",
    "401": "The request has no valid credential.",
    "403": "The role, or the token's scopes and limits, do not allow it.",
    "404": "This does not exist, or you may not see it.",
    "413": "The request or its answer is too large.",
    "415": "The content type is not supported, or the answer cannot be sent in the requested form.",
    "421": "The Host is not one of this server's names.",
    "429": "Too many requests; Retry-After says how many seconds to wait.",
    "500": "The server failed; an operator can find the failure by x-request-id.",
    "503": "A service that the server needs is unavailable; try again.",
    "504": "The request took longer than the server allows.",
}
_WRITE_REFUSALS = {"408": "The body did not arrive in time.", "409": "It conflicts with existing data."}
_CONTENT_REFUSALS = {
    "422": "The server does not fetch from this address.",
    "502": "The content of the address could not be fetched.",
    "507": "The server has no space left for the file.",
}


def route(operations: Sequence[Operation], at: str = API_PREFIX, prefix: str = API_PREFIX) -> Route:
    """Return the route of the description. It contains nobody's data, so it needs no token."""
    serialised: list[bytes] = []

    async def serve(_: Request) -> Response:
        if not serialised:
            serialised.append(await compute(lambda: orjson.dumps(describe(operations, prefix))))
        return Response(serialised[0], media_type="application/json")

    return Route(f"{at}/openapi.json", serve, methods=["GET"])


def describe(operations: Sequence[Operation], prefix: str = API_PREFIX) -> Schema:
    """Return the whole description."""
    models = _Models(operations)
    paths: dict[str, Schema] = {}
    for operation in operations:
        rest = _rest(operation)
        paths.setdefault(rest.path, {})[rest.method.lower()] = _describe(operation, rest, models)
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
            "schemas": {**models.components, "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "access": {"type": "apiKey", "in": "header", "name": "X-Access-Key"},
                "download": {"type": "apiKey", "in": "header", "name": "X-Almanac-Download-Token"},
                "link": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


class _Models:
    """The schemas of all bodies and answers, and of the models that they refer to."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        bodies = {model for operation in operations if (model := body_model(operation)) is not None}
        answers = {each.answer for each in operations if each.answer not in (None, FileAnswer)}
        answers |= {each.rest.error_answer for each in operations if each.rest and each.rest.error_answer}
        inputs: list[tuple[Any, Any, Any]] = [
            *((model, "validation", TypeAdapter(model)) for model in sorted(bodies, key=_name)),
            *((model, "serialization", TypeAdapter(model)) for model in sorted(answers, key=_name)),
        ]
        schemas, rest = TypeAdapter.json_schemas(inputs, ref_template=_REF)
        self._schemas = {key: plain_schema(schema) for key, schema in schemas.items()}
        self.components: Schema = plain_schema(rest.get("$defs", {}), is_names=True)

    def body(self, model: type[BaseModel], omit: frozenset[str]) -> Schema:
        """Return the schema of a body without the arguments that come from the path or that REST does not take."""
        schema = self._schemas[(model, "validation")]
        if not omit or "$ref" not in schema:
            return schema
        whole = self.components[schema["$ref"].rpartition("/")[2]]
        kept = {name: field for name, field in whole["properties"].items() if name not in omit}
        required = [name for name in whole.get("required", []) if name not in omit]
        return {**whole, "properties": kept, **({"required": required} if required else {"required": []})}

    def answer(self, model: Any) -> Schema:
        """Return the schema of an answer."""
        return self._schemas[(model, "serialization")]


def body_model(operation: Operation) -> type[BaseModel] | None:
    """Return the model of an operation's JSON body; None if no argument comes from the body."""
    rest, model = _rest(operation), operation.arguments
    if not rest.takes_body or model is None or not model.model_fields.keys() - _path_names(rest) - rest.omit:
        return None
    return model


def parameters(operation: Operation) -> list[Schema]:
    """Return the parameters in an operation's path and query string."""
    rest = _rest(operation)
    model = rest.parameters or operation.arguments
    if model is None:
        return []
    schema = cast("Schema", plain_schema(model.model_json_schema()))
    in_path, required = _path_names(rest), schema.get("required", [])
    has_query = rest.parameters is not None or not rest.takes_body
    return [
        _parameter(name, field, in_path=name in in_path, is_required=name in required or name in in_path)
        for name, field in schema.get("properties", {}).items()
        if name in in_path or (has_query and name not in rest.omit)
    ]


def fields(model: Any, omit: frozenset[str] = frozenset()) -> dict[str, Schema]:
    """Return the fields of a body or an answer, each with its schema and whether it is always there."""
    schema = cast("Schema", plain_schema(TypeAdapter(model).json_schema()))
    if "$ref" in schema:  # a model that contains itself
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    properties = schema.get("properties", {})
    return {name: {**each, "required": name in required} for name, each in properties.items() if name not in omit}


def body_omits(operation: Operation) -> frozenset[str]:
    """Return the arguments that are no part of an operation's body."""
    rest = _rest(operation)
    return rest.omit if rest.parameters else rest.omit | _path_names(rest)


def form_schema(operation: Operation) -> Schema | None:
    """Return the schema of an operation's multipart form; None if it takes none."""
    rest = _rest(operation)
    if rest.form is None or operation.arguments is None:
        return None
    known = fields(operation.arguments)
    described = {name: _form_field(known[name]) for name in known if name in rest.form.fields}
    return {
        "type": "object",
        "required": ["file"],
        "additionalProperties": False,
        "properties": {"file": _FILE, **described},
    }


def _form_field(schema: Schema) -> Schema:
    kinds = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))}
    described = {"description": schema["description"]} if "description" in schema else {}
    if kinds & {"object"} or schema.get("items", {}).get("type") == "object":
        return {"type": "string", "contentMediaType": "application/json", **described}
    return {key: value for key, value in schema.items() if key not in ("required", "default")}


def _rest(operation: Operation) -> Rest:
    assert operation.rest is not None
    return operation.rest


def _path_names(rest: Rest) -> frozenset[str]:
    return frozenset(re.findall(r"{(\w+)}", rest.path))


def _name(model: Any) -> str:
    return getattr(model, "__name__", str(model))


def _parameter(name: str, schema: Schema, *, in_path: bool, is_required: bool) -> Schema:
    if "anyOf" in schema:  # an optional parameter is nullable in the model, but a query string cannot express null
        schema = {**schema, **next(each for each in schema["anyOf"] if each != {"type": "null"})}
        del schema["anyOf"]
    described = {"description": schema["description"]} if "description" in schema else {}
    schema = {key: value for key, value in schema.items() if key != "description"}
    if schema.get("default", 0) is None:
        del schema["default"]
    location = "path" if in_path else "query"
    return {"name": name, "in": location, "required": is_required, **described, "schema": schema}


def _describe(operation: Operation, rest: Rest, models: _Models) -> Schema:
    scopes = ", ".join(sorted(operation.scopes))
    needs = "The credential is in the body." if rest.credentials is None else "Any valid token is sufficient."
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs the scope {scopes}." if scopes else needs,
        "tags": [rest.path.split("/")[1]],
    }
    if found := parameters(operation):
        described["parameters"] = found
    if (model := body_model(operation)) is not None:
        described["requestBody"] = _body(operation, rest, model, models)
    if rest.credentials != ():
        described["security"] = [{name: []} for name in rest.credentials or ()]
    return {**described, "responses": _responses(operation, rest, models)}


def _body(operation: Operation, rest: Rest, model: type[BaseModel], models: _Models) -> Schema:
    content: Schema = {}
    if (form := form_schema(operation)) is not None:
        content["multipart/form-data"] = {"schema": form}
    if rest.form is not None and rest.form.takes_raw_bytes:
        content["application/octet-stream"] = {"schema": {}}
    arguments = operation.example.arguments
    example = {} if arguments is None else {"example": dict(arguments)}
    omit = body_omits(operation)
    content["application/json"] = {"schema": models.body(model, omit), **example}
    is_needed = rest.form is not None or any(
        field.is_required() for name, field in model.model_fields.items() if name not in omit
    )
    return {"required": is_needed, "content": content}


def _responses(operation: Operation, rest: Rest, models: _Models) -> Schema:
    good: Schema = {"description": _meaning(operation)}
    if operation.answer is FileAnswer:
        good["content"] = {"*/*": {}}
    elif operation.answer is not None:
        answer = operation.example.answer
        example = {} if answer is None else {"example": orjson.loads(orjson.dumps(answer))}
        good["content"] = {"application/json": {"schema": models.answer(operation.answer), **example}}
    responses = {str(rest.status): good}
    responses |= {str(status): {**good, "description": text} for status, text in rest.other_statuses.items()}
    refusals = {
        **_REFUSALS,
        **(_WRITE_REFUSALS if rest.method != "GET" else {}),
        **(_CONTENT_REFUSALS if rest.form else {}),
    }
    error: Schema = {"$ref": _REF.format(model="Error")}
    if rest.error_answer is not None:
        error = {"anyOf": [error, models.answer(rest.error_answer)]}
    wrong = {"application/json": {"schema": error}}
    return responses | {status: {"description": text, "content": wrong} for status, text in sorted(refusals.items())}


def _meaning(operation: Operation) -> str:
    if operation.answer is None:
        return "Done. The answer is empty."
    if operation.answer is FileAnswer:
        return "The file as it was uploaded."
    return " ".join((getattr(operation.answer, "__doc__", "") or "").split())
