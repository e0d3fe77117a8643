"""A server with a small library, shared by these files, on a database of each kind."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.conftest import Cluster
from tests.live_server import Running, running, settings_for
from tests.web.api import Api

PUMPS = (
    "# Pumps\n\nThe pump P-40 runs at forty turns a minute.\n\n## Care\n\n"
    "The bearing of the pump P-40 is oiled every spring. The foreman does the oiling himself.\n"
)
LAMPS = "# Lamps\n\nThe lamp in the hall burns whale oil and is lit at dusk.\n"
TEA = "# 茶叶\n\n龙井茶产于杭州西湖一带。每年清明前采摘的龙井茶品质最好。\n"


@dataclass(frozen=True)
class Library:
    """A server and its contents."""

    live: Running
    base: int

    def search(self, question: str, status: int = 200, **more: Any) -> httpx2.Response:
        body = {"question": question, "knowledge_base_ids": [str(self.base)], **more}
        answer = self.live.http.post("/api/v1/knowledge-search", json=body, headers={"x-api-key": self.live.token})
        assert answer.status_code == status, answer.text
        return answer

    def message(self, text: str, status: int = 200, query: str = "", **more: Any) -> httpx2.Response:
        """A message with the key and the base in its context, unless the arguments differ."""
        context = {"api_key": self.live.token, "kb_ids": [str(self.base)], "weknora_base_url": self.live.url}
        body = {"message": text, "context": {**context, **more.pop("context", {})}, **more}
        answer = self.live.http.post(f"/a2a/weknora/messages{query}", json=body)
        assert answer.status_code == status, answer.text
        return answer


def stocked(live: Running) -> Library:
    api = Api(live, live.token)
    base = api.base("Workshop")
    for name, text in (("pumps.md", PUMPS), ("lamps.md", LAMPS), ("tea.md", TEA)):
        api.text(base, name, text)
    live.work()
    return Library(live, base)


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def library(
    request: pytest.FixtureRequest, new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    home = tmp_path_factory.mktemp("home")
    if request.param == "sqlite":
        with running(settings_for(new_sqlite(), home)) as live:
            yield stocked(live)
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.take()
    with running(settings_for(url, home)) as live:
        yield stocked(live)
    cluster.drop(url)
