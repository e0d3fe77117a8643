"""What is made of an endpoint's answers, whatever it may answer."""

import asyncio
import json
from typing import Any

import pytest

from almanac.assist.weknora.backends import MAX_CONTENT_CHARS, MAX_HIGHLIGHTS, RemoteBackend
from almanac.assist.weknora.weknora_tool import SearchRefused, WeKnoraContext, WeKnoraQuery, WeKnoraResults
from almanac.net.service_client import ServiceResponse

KEY = "sk-weknora-key-that-nobody-may-see-0123456789"


def find(body: Any, status: int = 200, **asked: Any) -> WeKnoraResults:
    """What a search comes to, where the endpoint answers so."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def post(content: bytes, headers: dict[str, str]) -> ServiceResponse:
        return ServiceResponse(status, raw, {})

    return asyncio.run(
        RemoteBackend(WeKnoraContext(KEY, ["kb1"], "https://x"), post).find(WeKnoraQuery(query="q", **asked))
    )


def refused(body: Any, status: int = 400) -> str:
    with pytest.raises(SearchRefused) as caught:
        find(body, status)
    return caught.value.message


def result(**more: Any) -> dict[str, Any]:
    return {"id": "1", "content": "text", "score": 0.9, "knowledge_id": "7", "match_type": "hybrid", **more}


def test_the_key_is_taken_out_of_results_before_they_are_cut():
    names = ("id", "content", "knowledge_id", "knowledge_title", "knowledge_filename", "match_type")
    [piece] = find({"results": [result(**dict.fromkeys(names, f"a {KEY}"))]}).items
    assert KEY not in repr(piece)
    assert (piece.content, piece.title, piece.match_type) == ("a [key]", "a [key]", "")
    [piece] = find({"results": [result(content="x" * (MAX_CONTENT_CHARS - 20) + KEY)]}).items
    assert KEY[:10] not in piece.content
    escaped = json.dumps({"results": [result(content=KEY)]}).replace("sk-", "\\u0073\\u006b-").encode()
    assert find(escaped).items[0].content == "[key]"


def test_the_key_is_taken_out_of_refusals_before_they_are_cut():
    for body in ({"error": "x" * 480 + KEY}, {"message": "x" * 480 + KEY}, b"x" * 480 + KEY.encode()):
        assert refused(body) == "400 - " + "x" * 480 + "[key]"
        assert KEY[:10] not in refused(body)
    assert KEY not in refused(b"sk-\0" + KEY[3:].encode())


def test_a_body_without_a_message_is_told_as_it_stands():
    assert refused(b"<html>\n  boom</html>", 502) == "502 - <html>\n  boom</html>"
    assert refused({"oops": "boom"}) == '400 - {"oops": "boom"}'
    assert refused({"error": "one\ntwo"}) == "400 - one two"
    assert refused(b"y" * 9000) == "400 - " + "y" * 500
    assert refused(b" \n ") == "400 - It gave no reason."


def test_spans_stand_in_the_content_one_after_another_and_are_not_too_many():
    given = [[0, 2], [1, 3], [2, 2], [3, 2], [2, 3], [-1, 4], [3, 99], [True, 4], [3.0, 4], "?", [3], [3, 4]]
    [piece] = find({"results": [result(highlights=given)]}).items
    assert piece.highlights == ((0, 2), (2, 3), (3, 4))
    many = [[each, each + 1] for each in range(1000)]
    [piece] = find({"results": [result(content="x" * 1000, highlights=many)]}).items
    assert len(piece.highlights) == MAX_HIGHLIGHTS


@pytest.mark.parametrize(
    ("given", "read"),
    [("hybrid", "hybrid"), ("keyword", "keyword"), (0, "vector"), (99, ""), ("\n# obey", ""), (True, ""), ({}, "")],
)
def test_how_a_piece_was_found_is_one_of_the_words_for_it(given: Any, read: str):
    assert find({"results": [result(match_type=given)]}).items[0].match_type == read


def test_scores_above_one_of_a_real_weknora_are_brought_to_the_best_of_them():
    scores = [12.5, 10.0, 2.5, -3, True, "9", None]
    found = find({"success": True, "data": [result(id=str(at), score=score) for at, score in enumerate(scores)]})
    assert [piece.score for piece in found.items] == [1.0, 0.8]
    every = find({"data": [result(id=str(at), score=score) for at, score in enumerate(scores)]}, min_score=0.0).items
    assert [piece.score for piece in every] == [1.0, 0.8, 0.2, 0.0, 0.0, 0.0, 0.0]
    assert [piece.score for piece in find({"data": [result(score=0.7)]}).items] == [0.7]


def test_a_result_without_an_id_has_one_of_its_document_and_its_content():
    same = [result(id=""), result(id=None)]
    other = [result(id="", content="other"), result(id="", knowledge_id="8")]
    ids = [piece.id for piece in find({"results": [*same, *other]}).items]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert ids[0].startswith("7-")
