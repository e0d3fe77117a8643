"""The identity of an external caller: the owner of the token, or the result of a deployment's own handler."""

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from almanac.app import check_settings
from almanac.core.database import Database
from almanac.core.settings import InvalidSetting
from almanac.core.settings_loader import load
from almanac.external import (
    ExternalKnowledgeCreatorInfo,
    ExternalKnowledgeUser,
    find_user,
    set_external_knowledge_auth_handler,
    set_external_knowledge_creator_resolver,
)
from almanac.identity import orgs, principals, tokens
from tests.cli.program import serving
from tests.live_server import LEGACY, Running, request
from tests.surfaces.external.caller import PATH, Caller, Town, failed
from tests.surfaces.wire import audit_of

pytestmark = pytest.mark.xdist_group("external")

REQUIRED = failed("unauthorized", "Authentication required")


def listing(live: Running, **headers: str) -> Any:
    """List the tools with these headers and no others that matter."""
    message, sent = request("tools/list", {}, era=LEGACY)
    sent |= {"accept": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return live.http.post(PATH, json=message, headers=sent)


def test_nobody_reaches_the_transport_without_a_token(live: Running):
    response = listing(live)
    assert (response.status_code, response.json()) == (401, REQUIRED)


def test_the_owner_of_a_token_is_the_user(town: Town, ada: Caller):
    assert listing(ada.live, authorization=f"Bearer {ada.token}").status_code == 200
    assert {item["knowledge_base_id"] for item in ada.bases(scope="personal")["items"]} == {town["own"]}
    assert {item["knowledge_base_id"] for item in town.caller("bob").bases(scope="personal")["items"]} == {town["bobs"]}


@pytest.mark.parametrize("kind", ["access", "mcp", "agent"])
def test_only_tokens_that_users_made_for_themselves_are_taken(live: Running, kind: str):
    holder = "robot" if kind == "agent" else "carl"
    token = live.new_token(holder, kind=kind) if kind == "agent" else _other_token(live, holder, kind)
    response = listing(live, authorization=f"Bearer {token}")
    assert (response.status_code, response.json()) == (401, REQUIRED)


def _other_token(live: Running, name: str, kind: str) -> str:
    live.new_token(name)

    async def issue(db: Database) -> str:
        who = await principals.get_by_name(db, (await orgs.get_by_name(db, "main")).id, name)
        if kind == "mcp":
            return (await db.write(lambda tx: tokens.issue_mcp_token(tx, who)))[0]
        return (await db.write(lambda tx: tokens.issue(tx, who, kind=kind)))[0]

    return live.run(issue)


def test_a_token_that_is_unknown_revoked_or_of_no_bearer_is_refused(town: Town, ada: Caller):
    token = ada.live.new_token("ada")
    good = listing(ada.live, authorization=f"Bearer {token}")
    assert good.status_code == 200

    async def revoke(db: Database) -> None:
        actor = await tokens.resolve(db, token)
        assert actor is not None
        await db.write(lambda tx: tokens.revoke(tx, actor.token_id))

    ada.live.run(revoke)
    for value in (f"Bearer {token}", "Bearer wg-unknown", f"Basic {ada.token}", "Bearer", ada.token, "Bearer x" * 99):
        assert listing(ada.live, authorization=value).status_code == 401


def test_an_api_key_or_a_user_name_establishes_nobody(ada: Caller):
    for headers in ({"x_api_key": ada.token}, {"x_user_name": "ada"}, {"x_api_key": ada.token, "x_user_name": "ada"}):
        response = listing(ada.live, **headers)
        assert (response.status_code, response.json()) == (401, REQUIRED)
    beside = Caller(ada.live, ada.token).post("tools/list", {}, headers={"x-user-name": "bob", "x-api-key": "wg-x"})
    assert beside.status_code == 200


def saying(user: ExternalKnowledgeUser | None) -> Callable[[str | None, Request], ExternalKnowledgeUser | None]:
    """A handler with the same answer for all callers."""

    def handler(token: str | None, request: Request) -> ExternalKnowledgeUser | None:
        return user

    return handler


# --- replaced ----------------------------------------------------------------------------------------------


def test_the_documented_example_resolves_a_trusted_gateway_header(town: Town, live: Running):
    employees = {"E-1001": ExternalKnowledgeUser(id=town["ada"], user_name="ada")}

    def resolve_user_from_employee_id(employee_id: str) -> ExternalKnowledgeUser | None:
        return employees.get(employee_id)

    def enterprise_auth_handler(token: str | None, request: Request) -> ExternalKnowledgeUser | None:
        employee_id = request.headers.get("X-User-Name")
        if not employee_id:
            return None
        user = resolve_user_from_employee_id(employee_id)
        if user is None:
            return None
        return ExternalKnowledgeUser(id=user.id, user_name=user.user_name)

    set_external_knowledge_auth_handler(enterprise_auth_handler)
    assert listing(live, x_user_name="E-1001").status_code == 200
    assert listing(live, x_user_name="E-9999").json() == REQUIRED
    assert listing(live, authorization=f"Bearer {town.caller('ada').token}").status_code == 401
    gateway = Caller(live, "unused")
    answer = gateway.call("list_nodes", {"knowledge_base_id": town["own"]}, headers={"x-user-name": "E-1001"})
    assert answer["knowledge_base_name"] == "Manuals"
    credential = gateway.call(
        "get_document_download", {"document_id": town["guide"]}, headers={"x-user-name": "E-1001"}
    )
    assert gateway.redeem(credential).status_code == 200


def test_a_handler_may_be_a_coroutine_and_find_users_by_their_names(town: Town, live: Running):
    seen: list[tuple[str | None, str]] = []

    async def handler(token: str | None, request: Request) -> ExternalKnowledgeUser | None:
        seen.append((token, request.url.path))
        return await find_user(request, request.headers.get("x-user-name", ""), "main")

    set_external_knowledge_auth_handler(handler)
    assert listing(live, x_user_name="ada", authorization="Bearer their-own").status_code == 200
    assert listing(live, x_user_name="robot").status_code == 401
    assert listing(live, x_user_name="nobody").status_code == 401
    assert seen[0] == ("their-own", PATH)
    assert seen[1][0] is None


def test_a_handler_that_raises_or_returns_nonsense_refuses_that_one_request(live: Running):
    def explode(token: str | None, request: Request) -> ExternalKnowledgeUser | None:
        raise RuntimeError("the secret plan")

    def nonsense(token: str | None, request: Request) -> Any:
        return "ada"

    for handler in (explode, nonsense):
        set_external_knowledge_auth_handler(handler)
        response = listing(live, authorization="Bearer anything")
        assert (response.status_code, response.json()) == (401, failed("unauthorized", "Authentication failed"))


def test_a_handler_cannot_name_a_user_who_is_not_there(town: Town, live: Running):
    for user_id in (999_999, 0, -1):
        set_external_knowledge_auth_handler(saying(ExternalKnowledgeUser(user_id, "ghost")))
        assert listing(live).json() == REQUIRED


def test_a_handler_that_blocks_stops_nobody_else(town: Town, live: Running):
    main = threading.Event()
    where: list[bool] = []

    def handler(token: str | None, request: Request) -> ExternalKnowledgeUser:
        where.append(threading.current_thread() is threading.main_thread())
        main.wait(5)
        return ExternalKnowledgeUser(town["ada"], "ada")

    set_external_knowledge_auth_handler(handler)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(listing(live).status_code))
    waiting.start()
    assert live.http.get("/mcp/knowledge-external/health").status_code == 200  # while the handler waits
    main.set()
    waiting.join()
    assert (answers, where) == ([200], [False])


def test_public_paths_stay_public_whatever_the_handler_says(live: Running):
    set_external_knowledge_auth_handler(saying(None))
    for path in ("", "/", "/health"):
        assert live.http.get(f"/mcp/knowledge-external{path}").status_code == 200


def test_what_a_gateway_s_user_does_is_in_the_audit_trail(town: Town, live: Running):
    set_external_knowledge_auth_handler(saying(ExternalKnowledgeUser(town["ada"], "ada")))
    Caller(live, "x").call("list_knowledge_bases", headers={"x-request-id": "from-the-gateway"})
    [row] = audit_of(live, "from-the-gateway")
    assert (row["actor"], row["token_id"], row["surface"]) == ("ada", 0, "external")
    assert (row["tool"], row["outcome"]) == ("wegent_kb_list_knowledge_bases", "ok")


# --- creators ----------------------------------------------------------------------------------------------


def test_a_resolver_says_who_made_things(town: Town, ada: Caller):
    asked: list[list[int]] = []

    async def resolver(db: Database, user_ids: list[int]) -> Mapping[int, ExternalKnowledgeCreatorInfo]:
        asked.append(user_ids)
        return {town["ada"]: ExternalKnowledgeCreatorInfo(town["ada"], "Ada L.", {"desk": "4.12"})}

    set_external_knowledge_creator_resolver(resolver)
    found = {item["knowledge_base_id"]: item["creator"] for item in ada.bases()["items"]}
    told = {"user_id": town["ada"], "user_name": "Ada L.", "attributes": {"desk": "4.12"}}
    assert found == {town["own"]: told, town["group"]: told, town["org"]: None}
    assert sorted(asked[0]) == [1, town["ada"]]
    [document] = ada.nodes(knowledge_base_id=town["group"])["items"]
    assert document["creator"] == told


def test_a_resolver_that_fails_is_stood_in_for_by_our_own(town: Town, ada: Caller):
    def broken(db: Database, user_ids: list[int]) -> Mapping[int, ExternalKnowledgeCreatorInfo]:
        raise RuntimeError("the directory is down")

    set_external_knowledge_creator_resolver(broken)
    [base] = ada.bases(scope="personal")["items"]
    assert base["creator"] == {"user_id": town["ada"], "user_name": "ada", "attributes": {}}


# --- by an operator ----------------------------------------------------------------------------------------


def test_the_module_of_the_guide_is_imported_by_the_program_and_decides(tmp_path: Path):
    guide = Path(__file__).parents[3] / "docs" / "how-to" / "connect-an-external-caller.md"
    [module] = re.findall(r"```python\n(# gateway_auth\.py\n.*?)```", guide.read_text("utf-8"), re.DOTALL)
    (tmp_path / "gateway_auth.py").write_text(module)
    settings = {
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}",
        "EXTERNAL_KNOWLEDGE_MCP_ENABLED": "true",
        "EXTERNAL_KNOWLEDGE_MCP_EXTENSION": "gateway_auth",
        "ALMANAC_JOB_WORKERS": "0",
        "ALMANAC_EMBEDDING": "false",
    }
    with serving(tmp_path / "place" / "home", lines=4, settings=settings) as server:
        message, headers = request("tools/list", {}, era=LEGACY)
        for name, status in (("admin", 200), ("nobody", 401)):
            sent = {**headers, "accept": "application/json", "x-user-name": name}
            assert httpx2.post(server.url + PATH, json=message, headers=sent, timeout=30).status_code == status


@pytest.mark.parametrize("name", ["never_written", "never.written", "..", "json.nothing"])
def test_an_extension_that_cannot_be_imported_is_said_at_the_start(name: str):
    with pytest.raises(InvalidSetting, match=f"external_extension: there is no module '{name}'"):
        check_settings(load({"EXTERNAL_KNOWLEDGE_MCP_EXTENSION": name}).settings)
