"""Settings: one table, four sources, and errors that say which setting and where it came from."""

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from almanac.bootstrap import load_settings
from almanac.core.settings import InvalidSetting, Settings, environment_names, shown
from almanac.core.settings_loader import load, unknown_variables

FIELDS: dict[str, "Field[Any]"] = {item.name: item for item in fields(Settings)}
SECRETS = {
    "chat_key", "database_url", "embedding_key", "gateway_service_key", "internal_service_token", "redis_url", "secret",
}  # fmt: skip

# The text in the environment, and its value.
SAMPLES: dict[Any, tuple[str, Any]] = {
    bool: ("yes", True),
    int: ("77", 77),
    float: ("7.5", 7.5),
    str: ("  /somewhere ", "/somewhere"),
    Path: ("/srv/almanac", Path("/srv/almanac")),
    tuple[str, ...]: ("a.example, b.example:*", ("a.example", "b.example:*")),
}
CHOICES = {
    "secret": "k" * 32,
    "rate_limit_strategy": "moving",
    "metrics_access": "token",
    "log_level": "debug",
    "log_format": "json",
    "max_body_bytes": "2048",
    "max_buffered_body_bytes": "4096",
    "max_header_bytes": "8192",
    "max_file_bytes": "2048",
    "parser_memory_mb": "4096",
    "query_memory_mb": "2048",
    "database_url": "postgresql://db/almanac",
    "redis_url": "redis://cache:6379/0",
    "public_url": "https://kb.example",
    "otlp_endpoint": "http://otel:4318",
    "embedding_url": "https://models.example/v1",
    "knowledge_runtime_url": "http://runtime.internal:8200",
    "gateway_upstream_url": "https://kb.example",
    "gateway_keys_url": "https://keys.example",
    "chat_provider": "anthropic",
    "chat_url": "https://models.example/v1",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder and an environment without settings."""
    for name in [name for item in FIELDS.values() for name in environment_names(item)] + ["ALMANAC_CONFIG"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_with_no_source_at_all_every_setting_has_its_default():
    loaded = load({})
    assert loaded.settings == Settings()
    assert set(loaded.sources) == set(FIELDS)
    assert set(loaded.sources.values()) == {"default"}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_can_be_set_by_each_of_its_environment_names(name: str):
    text, value = SAMPLES[FIELDS[name].type]
    if name in CHOICES:
        text = CHOICES[name]
        value = int(text) if text.isdigit() else text
    for variable in environment_names(FIELDS[name]):
        loaded = load({variable: text})
        assert getattr(loaded.settings, name) == value
        assert loaded.sources[name] == f"environment {variable}"


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_can_be_set_in_the_file(name: str):
    default = getattr(Settings(), name)
    given: Any = str(default) if isinstance(default, Path) else default
    loaded = load({}, {name: given})
    assert getattr(loaded.settings, name) == default
    assert loaded.sources[name] == "file"


def test_an_option_beats_the_environment_which_beats_the_file_which_beats_the_default():
    environ, file, options = {"ALMANAC_PORT": "2"}, {"port": 3}, {"port": 1}
    steps = [
        (load(environ, file, options), 1, "option --port"),
        (load(environ, file, {"port": None}), 2, "environment ALMANAC_PORT"),
        (load({}, file), 3, "file"),
        (load({}), 8000, "default"),
    ]
    for loaded, port, source in steps:
        assert (loaded.settings.port, loaded.sources["port"]) == (port, source)


def test_our_own_name_beats_the_name_a_seed_gives():
    both = {"SECRET_KEY": "theirs" * 8, "ALMANAC_SECRET": "ours" * 8}
    assert load(both).settings.secret == "ours" * 8
    assert load({"SECRET_KEY": "theirs" * 8}).settings.secret == "theirs" * 8


@pytest.mark.parametrize("variable", ["ALMANAC_SECRET", "SECRET_KEY"])
def test_a_short_secret_is_refused_and_not_repeated(variable: str):
    with pytest.raises(InvalidSetting, match="at least 32 characters") as refused:
        load({variable: "hunter2"})
    assert "hunter2" not in refused.value.text


def test_a_misspelt_variable_is_found_with_the_name_that_it_resembles():
    given = {
        "ALMANAC_HOEM": "/srv", "ALMANAC_REDIS_URL": "redis://cache", "ALMANAC_XYZZY": "1", "ALMANAC_PORT": "1",
        "ALMANAC_TOKEN": "t", "ALMANAC_CONFIG": "c", "REDIS_URL": "redis://cache", "HOME": "/root",
    }  # fmt: skip
    assert unknown_variables(given) == {
        "ALMANAC_HOEM": "ALMANAC_HOME",
        "ALMANAC_REDIS_URL": "REDIS_URL",
        "ALMANAC_XYZZY": "",
    }
    assert unknown_variables({name: "" for item in FIELDS.values() for name in environment_names(item)}) == {}


def test_an_empty_variable_counts_as_not_set():
    loaded = load({"ALMANAC_PORT": "", "REDIS_URL": ""}, {"port": 9})
    assert (loaded.settings.port, loaded.sources["port"]) == (9, "file")
    assert loaded.sources["redis_url"] == "default"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("REDIS_URL", "redis://cache:6379/0", "redis_url", "redis://cache:6379/0"),
        ("API_PREFIX", "/api/v1", "api_prefix", "/api/v1"),
        ("SECRET_KEY", "k" * 40, "secret", "k" * 40),
        ("MCP_ALLOWED_HOSTS", "kb.example.com,kb.example.com:*", "allowed_hosts",
         ("kb.example.com", "kb.example.com:*")),
        ("MCP_ALLOWED_HOSTS", '["kb.example.com", "[::1]:9000"]', "allowed_hosts", ("kb.example.com", "[::1]:9000")),
        ("MCP_ALLOWED_HOSTS", "[::1]:9000", "allowed_hosts", ("[::1]:9000",)),
        ("MCP_ALLOWED_ORIGINS", "https://kb.example.com", "allowed_origins", ("https://kb.example.com",)),
        ("MCP_ENABLE_DNS_REBINDING_PROTECTION", "false", "check_hosts", False),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318", "otlp_endpoint", "http://otel:4318"),
        ("EXTERNAL_KNOWLEDGE_MCP_ENABLED", "true", "external_enabled", True),
        ("EXTERNAL_KNOWLEDGE_MCP_RATE_LIMIT_ENABLED", "false", "external_rate_limit_enabled", False),
        ("EXTERNAL_KNOWLEDGE_MCP_RATE_LIMIT_REQUESTS", "5", "external_rate_limit_requests", 5),
        ("EXTERNAL_KNOWLEDGE_MCP_RATE_LIMIT_WINDOW_SECONDS", "5", "external_rate_limit_window_seconds", 5),
        ("EXTERNAL_KNOWLEDGE_MCP_SEARCH_RATE_LIMIT_ENABLED", "off", "external_search_rate_limit_enabled", False),
        ("EXTERNAL_KNOWLEDGE_MCP_SEARCH_RATE_LIMIT_REQUESTS", "5", "external_search_rate_limit_requests", 5),
        ("EXTERNAL_KNOWLEDGE_MCP_DOWNLOAD_RATE_LIMIT_ENABLED", "0", "external_download_rate_limit_enabled", False),
        ("EXTERNAL_KNOWLEDGE_MCP_DOWNLOAD_PREAUTH_IP_RATE_LIMIT_REQUESTS", "5",
         "external_download_preauth_ip_rate_limit_requests", 5),
        ("EXTERNAL_KNOWLEDGE_MCP_DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_REQUESTS", "5",
         "external_download_preauth_document_rate_limit_requests", 5),
        ("EXTERNAL_KNOWLEDGE_MCP_DOWNLOAD_RATE_LIMIT_REQUESTS", "5", "external_download_rate_limit_requests", 5),
        ("EXTERNAL_KNOWLEDGE_MCP_EXTENSION", "gateway_auth", "external_extension", "gateway_auth"),
        ("RAG_RUNTIME_MODE", '{"query": "remote"}', "rag_runtime_mode", '{"query": "remote"}'),
        ("KNOWLEDGE_RUNTIME_URL", "http://runtime:8200", "knowledge_runtime_url", "http://runtime:8200"),
        ("INTERNAL_SERVICE_TOKEN", "t0ken", "internal_service_token", "t0ken"),
    ],
)  # fmt: skip
def test_the_names_that_the_seeds_document_are_read(variable: str, text: str, name: str, value: Any):
    loaded = load({variable: text})
    assert getattr(loaded.settings, name) == value
    assert loaded.sources[name] == f"environment {variable}"


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("ALMANAC_PORT", "eighty", "port (from environment ALMANAC_PORT) must be a whole number."),
        ("ALMANAC_PORT", "8000.5", "port (from environment ALMANAC_PORT) must be a whole number."),
        ("ALMANAC_PORT", "-1", "port (from environment ALMANAC_PORT) must be at least 0."),
        ("ALMANAC_PORT", "65536", "port (from environment ALMANAC_PORT) must be at most 65535."),
        ("ALMANAC_WORKERS", "0", "workers (from environment ALMANAC_WORKERS) must be at least 1."),
        ("ALMANAC_REQUEST_DEADLINE_SECONDS", "soon",
         "request_deadline_seconds (from environment ALMANAC_REQUEST_DEADLINE_SECONDS) must be a number."),
        ("ALMANAC_REQUEST_DEADLINE_SECONDS", "nan",
         "request_deadline_seconds (from environment ALMANAC_REQUEST_DEADLINE_SECONDS) must be a finite number."),
        ("ALMANAC_SHUTDOWN_GRACE_SECONDS", "-inf",
         "shutdown_grace_seconds (from environment ALMANAC_SHUTDOWN_GRACE_SECONDS) must be at least 0."),
        ("MCP_ENABLE_DNS_REBINDING_PROTECTION", "maybe",
         "check_hosts (from environment MCP_ENABLE_DNS_REBINDING_PROTECTION) must be true or false."),
        ("ALMANAC_RATE_LIMIT_STRATEGY", "sliding",
         "rate_limit_strategy (from environment ALMANAC_RATE_LIMIT_STRATEGY) must be one of: fixed, moving."),
        ("ALMANAC_LOG_LEVEL", "loud",
         "log_level (from environment ALMANAC_LOG_LEVEL) must be one of: debug, info, warning, error."),
        ("API_PREFIX", "api", "api_prefix (from environment API_PREFIX) must start with / and not end with it,"
         " such as /api."),
        ("API_PREFIX", "/api/", "api_prefix (from environment API_PREFIX) must start with / and not end with it,"
         " such as /api."),
    ],
)  # fmt: skip
def test_a_bad_value_names_the_setting_and_its_source(variable: str, text: str, complaint: str):
    with pytest.raises(InvalidSetting) as caught:
        load({variable: text})
    assert caught.value.text == complaint


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_every_secret_can_be_in_a_file(name: str, tmp_path: Path):
    text = CHOICES.get(name, "a secret of the operator")
    file = tmp_path / "secret"
    file.write_text(f"{text}\n")
    for variable in environment_names(FIELDS[name]):
        loaded = load({f"{variable}_FILE": str(file)})
        assert getattr(loaded.settings, name) == text
        assert loaded.sources[name] == f"environment {variable}_FILE"
        with pytest.raises(InvalidSetting, match=rf"^{variable} and {variable}_FILE are both set\.$"):
            load({variable: text, f"{variable}_FILE": str(file)})


def test_only_secrets_are_read_from_files(tmp_path: Path):
    (tmp_path / "host").write_text("0.0.0.0")
    assert load({"ALMANAC_HOST_FILE": str(tmp_path / "host")}).settings.host == "127.0.0.1"


def test_a_secret_file_that_cannot_be_read_names_the_variable_and_never_its_content(tmp_path: Path):
    for content, reason in (
        (None, "cannot be read: No such file or directory"), (b" \n", "is an empty file"),
        (b"hunter2\xff", "cannot be read: it is not UTF-8"),
    ):  # fmt: skip
        if content is not None:
            (tmp_path / "secret").write_bytes(content)
        with pytest.raises(InvalidSetting) as caught:
            load({"ALMANAC_SECRET_FILE": str(tmp_path / "secret")})
        assert caught.value.text == f"secret (from environment ALMANAC_SECRET_FILE) {reason}."


def test_a_bad_value_in_the_file_or_an_option_says_so():
    with pytest.raises(InvalidSetting, match=r"^port \(from file\) must be a whole number\.$"):
        load({}, {"port": True})
    with pytest.raises(InvalidSetting, match=r"^workers \(from option --workers\) must be at least 1\.$"):
        load({}, None, {"workers": 0})


def test_a_database_of_an_unknown_kind_is_a_bad_setting_and_its_password_stays_unsaid():
    with pytest.raises(InvalidSetting, match=r"database_url \(from environment ALMANAC_DATABASE_URL\)") as caught:
        load({"ALMANAC_DATABASE_URL": "mysql://root:hunter2@db/almanac"})
    assert "hunter2" not in caught.value.text


def test_a_redis_url_that_is_none_is_a_bad_setting():
    with pytest.raises(InvalidSetting, match=r"redis_url \(from environment REDIS_URL\)"):
        load({"REDIS_URL": "localhost:6379"})


def test_an_unknown_entry_in_the_file_is_refused_with_the_nearest_name():
    with pytest.raises(InvalidSetting, match=r"unknown entry 'rate_limit_cals'\. Did you mean rate_limit_calls\?$"):
        load({}, {"rate_limit_cals": 5})
    with pytest.raises(InvalidSetting, match=r"unknown entry 'zzz'\.$"):
        load({}, {"zzz": 5})


def test_a_table_in_the_file_is_an_unknown_entry_too(clean: Path):
    (clean / "almanac.toml").write_text("[server]\nport = 1\n")
    with pytest.raises(InvalidSetting, match=r"unknown entry 'server'"):
        load_settings()


def test_the_file_is_almanac_toml_in_the_working_folder(clean: Path):
    (clean / "almanac.toml").write_text('port = 4\nallowed_hosts = ["a", "[::1]:9"]\nhome = "~/here"\n')
    loaded = load_settings()
    assert loaded.settings.port == 4
    assert loaded.settings.allowed_hosts == ("a", "[::1]:9")
    assert loaded.settings.home == Path.home() / "here"
    assert loaded.sources["port"] == "file"


def test_almanac_config_names_another_file(clean: Path, monkeypatch: pytest.MonkeyPatch):
    (clean / "almanac.toml").write_text("port = 4\n")
    (clean / "other.toml").write_text("port = 5\n")
    monkeypatch.setenv("ALMANAC_CONFIG", str(clean / "other.toml"))
    assert load_settings().settings.port == 5
    monkeypatch.setenv("ALMANAC_PORT", "6")
    assert load_settings().settings.port == 6
    assert load_settings({"port": 7}).settings.port == 7


@pytest.mark.parametrize("content", [None, b"port = ", b'host = "\xff\xfe"', "a folder"])
def test_a_file_that_cannot_be_read_is_one_line_naming_it(
    clean: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str | None
):
    file = clean / "settings.toml"
    monkeypatch.setenv("ALMANAC_CONFIG", str(file))
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    with pytest.raises(InvalidSetting) as caught:
        load_settings()
    assert str(file) in caught.value.text
    assert "\n" not in caught.value.text


def test_secrets_are_marked_and_never_shown():
    given = {
        "database_url": "postgresql://u:pw-marker@h/d",
        "redis_url": "redis://:pw-marker@h",
        "secret": "pw-marker" * 4,
        "embedding_key": "pw-marker",
        "internal_service_token": "pw-marker",
        "gateway_service_key": "pw-marker",
        "chat_key": "pw-marker",
    }
    settings = load({}, None, given).settings
    assert {name for name, item in FIELDS.items() if item.metadata["secret"]} == SECRETS
    for name in SECRETS:
        assert shown(FIELDS[name], settings) == "(set)"
        assert shown(FIELDS[name], Settings()) == "(not set)"
    assert "pw-marker" not in repr(settings)


def test_other_values_are_shown_as_one_would_write_them():
    settings = load({}, None, {"allowed_hosts": "a,b", "check_hosts": False, "port": 1, "home": "/x"}).settings
    assert [shown(FIELDS[name], settings) for name in ("allowed_hosts", "check_hosts", "port", "home")] == [
        "a, b",
        "false",
        "1",
        "/x",
    ]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 9}, "http://127.0.0.1:9"),
        ({"host": "::1", "port": 9}, "http://[::1]:9"),
        ({"host": "kb.example", "port": 9}, "http://kb.example:9"),
        ({"public_url": "https://kb.example/"}, "https://kb.example"),
    ],
)
def test_the_url_is_one_that_callers_can_use(options: dict[str, Any], url: str):
    assert load({}, None, options).settings.url == url


@pytest.mark.parametrize(
    ("host", "public"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("10.0.0.1", True)],
)
def test_anything_but_loopback_is_a_public_bind(host: str, public: bool):
    assert load({}, None, {"host": host}).settings.is_public is public


def test_without_a_database_url_the_data_is_sqlite_in_the_home_folder(tmp_path: Path):
    settings = load({}, None, {"home": tmp_path}).settings
    assert settings.store_url == f"sqlite:///{tmp_path / 'almanac.db'}"
    assert settings.on_sqlite
    assert not load({}, None, {"database_url": "postgresql://h/d"}).settings.on_sqlite
