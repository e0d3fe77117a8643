"""Responses of remote endpoints, valid and invalid."""

import asyncio
import json
from typing import Any

import pytest

from almanac.assist.weknora.backends import RemoteBackend
from almanac.assist.weknora.weknora_result import MAX_CONTENT_CHARS, MAX_HIGHLIGHTS
from almanac.assist.weknora.weknora_tool import SearchRefused, WeKnoraContext, WeKnoraQuery, WeKnoraResults
from almanac.net.service_client import ServiceResponse

KEY = "sk-weknora-key-that-must-stay-secret-0123456789"


def find(body: Any, status: int = 200, **arguments: Any) -> WeKnoraResults:
    """The results of a search if the endpoint returns this response."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def post(content: bytes, headers: dict[str, str]) -> ServiceResponse:
        return ServiceResponse(status, raw, {})

    return asyncio.run(
        RemoteBackend(WeKnoraContext(KEY, ["kb1"], "https://x"), post).find(WeKnoraQuery(query="q", **arguments))
    )


def refused(body: Any, status: int = 400) -> str:
    with pytest.raises(SearchRefused) as caught:
        find(body, status)
    return caught.value.message


def result(**more: Any) -> dict[str, Any]:
    return {"id": "1", "content": "text", "score": 0.9, "knowledge_id": "7", "match_type": "hybrid", **more}


def test_the_key_is_removed_from_results_before_they_are_cut():
    names = ("id", "content", "knowledge_id", "knowledge_title", "knowledge_filename", "match_type")
    [hit] = find({"results": [result(**dict.fromkeys(names, f"a {KEY}"))]}).items
    assert KEY not in repr(hit)
    assert (hit.content, hit.title, hit.match_type) == ("a [key]", "a [key]", "")
    [hit] = find({"results": [result(content="x" * (MAX_CONTENT_CHARS - 20) + KEY)]}).items
    assert KEY[:10] not in hit.content
    escaped = json.dumps({"results": [result(content=KEY)]}).replace("sk-", "\\u0073\\u006b-").encode()
    assert find(escaped).items[0].content == "[key]"


def test_the_key_is_removed_from_error_responses_before_they_are_cut():
    for start, end in (("", ""), ('{"error":"', '"}')):
        fill = "x" * (480 - len(start))
        assert refused(f"{start}{fill}{KEY}{end}".encode()) == f"400 - {start}{fill}[key]{end}"
    assert KEY[:10] not in refused(b"x" * 480 + KEY.encode())
    assert KEY not in refused(b"sk-\0" + KEY[3:].encode())
    escaped = json.dumps({"error": KEY}).replace("sk-", "\\u0073\\u006b-").encode()
    assert refused(escaped) == '400 - {"error":"[key]"}'


def test_the_text_of_an_error_response_is_quoted_up_to_a_length():
    assert refused(b"<html>\n  boom</html>", 502) == "502 - <html>\n  boom</html>"
    body = {"success": False, "error": {"code": 1002, "message": "one\ntwo", "details": {"field": "query"}}}
    assert refused(body) == f"400 - {json.dumps(body)}"
    assert refused(b"y" * 9000) == "400 - " + "y" * 500
    assert refused(b" \n ") == "400 - It gave no reason."


def test_only_valid_highlights_are_kept_up_to_a_maximum():
    spans = [[0, 2], [1, 3], [2, 2], [3, 2], [2, 3], [-1, 4], [3, 99], [True, 4], [3.0, 4], "?", [3], [3, 4]]
    [hit] = find({"results": [result(highlights=spans)]}).items
    assert hit.highlights == ((0, 2), (2, 3), (3, 4))
    many = [[start, start + 1] for start in range(1000)]
    [hit] = find({"results": [result(content="x" * 1000, highlights=many)]}).items
    assert len(hit.highlights) == MAX_HIGHLIGHTS


@pytest.mark.parametrize(
    ("value", "name"),
    [("hybrid", "hybrid"), ("keyword", "keyword"), (0, "vector"), (99, ""), ("\n# obey", ""), (True, ""), ({}, "")],
)
def test_the_match_type_is_a_known_name_or_empty(value: Any, name: str):
    assert find({"results": [result(match_type=value)]}).items[0].match_type == name


def test_scores_of_a_real_weknora_are_scaled_to_the_best():
    scores = [12.5, 10.0, 2.5, -3, True, "9", None]
    results = find(
        {"success": True, "data": [result(id=str(number), score=score) for number, score in enumerate(scores)]}
    )
    assert [hit.score for hit in results.items] == [1.0, 0.8]
    unfiltered = find(
        {"data": [result(id=str(number), score=score) for number, score in enumerate(scores)]}, min_score=0.0
    ).items
    assert [hit.score for hit in unfiltered] == [1.0, 0.8, 0.2, 0.0, 0.0, 0.0, 0.0]
    assert [hit.score for hit in find({"data": [result(score=0.7)]}).items] == [0.7]


def test_a_result_without_an_id_gets_one_from_its_document_and_content():
    same = [result(id=""), result(id=None)]
    other = [result(id="", content="other"), result(id="", knowledge_id="8")]
    ids = [hit.id for hit in find({"results": [*same, *other]}).items]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert ids[0].startswith("7-")
