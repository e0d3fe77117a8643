"""Stand-ins on loopback: an endpoint with WeKnora's REST API, and the API of a language model."""

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-weknora-key-that-nobody-may-see-0123456789"

# The seed's appendix, word for word.
EXAMPLE_REQUEST: dict[str, Any] = {
    "question": "搜索查询",
    "knowledge_base_ids": ["kb1", "kb2"],
    "search_mode": "hybrid",
    "top_k": 10,
    "min_score": 0.5,
    "rerank": True,
}
EXAMPLE_RESPONSE: dict[str, Any] = {
    "results": [
        {
            "id": "chunk_id",
            "content": "文档内容片段",
            "score": 0.85,
            "knowledge_id": "doc_id",
            "knowledge_title": "文档标题",
            "knowledge_filename": "文件名.pdf",
            "match_type": "hybrid",
        }
    ],
    "total_count": 25,
}


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b"{}"
    kind: str = "application/json"
    pause: float = 0.0
    headers: dict[str, str] = field(default_factory=dict[str, str])


def said(value: Any, status: int = 200, **more: Any) -> Answer:
    return Answer(status, json.dumps(value).encode(), **more)


@dataclass
class StandIn:
    """A server that sends prepared answers in turn, and then repeats the last."""

    answers: list[Answer] = field(default_factory=list[Answer])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    paths: list[str] = field(default_factory=list[str])
    make: Callable[[dict[str, Any]], Answer] | None = None
    url: str = ""
    let_go: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: dict[str, Any]) -> Answer:
        if self.make is not None:
            return self.make(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def standing_in(stand_in: StandIn) -> Generator[StandIn]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            stand_in.requests.append(json.loads(body))
            stand_in.headers.append({name.lower(): value for name, value in self.headers.items()})
            stand_in.paths.append(self.path)
            answer = stand_in.answer(stand_in.requests[-1])
            if answer.pause:
                stand_in.let_go.wait(answer.pause)
            try:
                self.send_response(answer.status)
                self.send_header("content-type", answer.kind)
                self.send_header("content-length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:
                pass

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stand_in
    finally:
        stand_in.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": "m",
        "choices": [choice],
    }


def _events(chunks: list[dict[str, Any]]) -> Answer:
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
    return Answer(body=body.encode(), kind="text/event-stream")


def speech(*words: str) -> Answer:
    """Answers of OpenAI's API: a text, a few words at a time."""
    return _events([*(_chunk({"role": "assistant", "content": each}) for each in words), _chunk({}, "stop")])


def tool_use(**arguments: Any) -> Answer:
    """Answers of OpenAI's API: a call of the tool."""
    call = {"name": "weknora_search", "arguments": json.dumps(arguments)}
    use = {"index": 0, "id": "call_1", "type": "function", "function": call}
    return _events([_chunk({"role": "assistant", "tool_calls": [use]}), _chunk({}, "tool_calls")])
