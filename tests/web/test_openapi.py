"""The three OpenAPI documents, read as a client reads them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.live_server import Running
from tests.web.test_openapi_examples import DOCUMENTS


def arguments_of(document: Any) -> Iterator[tuple[str, Any]]:
    """The name and the schema of each argument of each operation, and of each field within an argument."""
    for item in document["paths"].values():
        for operation in item.values():
            name = operation["operationId"]
            yield from ((f"{name}?{each['name']}", each) for each in operation.get("parameters", ()))
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                yield from fields_of(content["schema"], name, document["components"]["schemas"], set())


def fields_of(schema: Any, path: str, components: Any, above: set[str]) -> Iterator[tuple[str, Any]]:
    if (reference := schema.get("$ref")) in above:
        return
    if reference:
        schema, above = components[reference.rpartition("/")[2]], above | {reference}
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *([schema["items"]] if "items" in schema else [])):
        yield from fields_of(part, path, components, above)
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields_of(field, f"{path}.{name}", components, above)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_argument_of_every_operation_is_described(shared: Running, document: str) -> None:
    found = list(arguments_of(shared.http.get(document).json()))
    assert found
    assert [path for path, schema in found if len(schema.get("description", "").split()) < 2] == []
