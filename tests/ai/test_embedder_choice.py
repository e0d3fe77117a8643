"""The choice of the embedder by the settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from almanac.ai import multilingual
from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.embedder_choice import open_embedder
from almanac.ai.encoder import DESCRIPTION
from almanac.ai.errors import BadModel
from almanac.ai.remote import RemoteEmbedder
from almanac.core.settings import InvalidSetting, Settings
from almanac.core.settings_loader import load


def put_model(home: Path, name: str) -> None:
    folder = home / "models" / name
    folder.mkdir(parents=True)
    given = json.loads((DEFAULT.path / DESCRIPTION).read_bytes())
    (folder / DESCRIPTION).write_text(json.dumps({**given, "name": f"{name} in the home"}))


async def test_the_bundled_model_is_the_default():
    found = open_embedder(Settings())
    assert isinstance(found, BundledEmbedder)
    assert found.name == DEFAULT.describe().name


async def test_an_endpoint_is_used_where_one_is_named():
    found = open_embedder(Settings(embedding_url="http://127.0.0.1:9/v1", embedding_model="m"), dimension=7)
    assert isinstance(found, RemoteEmbedder)
    assert (found.name, found.dimension) == ("remote/m", 7)


def test_an_endpoint_needs_the_name_of_its_model():
    with pytest.raises(InvalidSetting, match="embedding_model"):
        open_embedder(Settings(embedding_url="http://127.0.0.1:9/v1"))


async def test_a_model_in_the_home_folder_is_used_by_its_name(tmp_path: Path):
    put_model(tmp_path, "ours")
    assert open_embedder(Settings(home=tmp_path, embedding_model="ours")).name == "ours in the home"


async def test_a_multilingual_model_in_the_home_folder_comes_before_an_installed_one(tmp_path: Path):
    put_model(tmp_path, "multilingual")
    found = open_embedder(Settings(home=tmp_path, embedding_model="multilingual"))
    assert found.name == "multilingual in the home"


def test_a_model_that_is_not_there_is_an_error_that_names_the_setting(tmp_path: Path):
    with pytest.raises(BadModel) as caught:
        open_embedder(Settings(home=tmp_path, embedding_model="absent"))
    assert "ALMANAC_EMBEDDING_MODEL" in caught.value.text


@pytest.mark.parametrize("name", ["../models", "/etc", "..", "a/b", "a b"])
def test_a_name_cannot_lead_out_of_the_models_folder(tmp_path: Path, name: str):
    with pytest.raises(InvalidSetting):
        open_embedder(Settings(home=tmp_path, embedding_model=name))


def test_without_the_extra_the_multilingual_model_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(multilingual, "PACKAGE", "no_such_package")
    with pytest.raises(BadModel) as caught:
        open_embedder(Settings(home=tmp_path, embedding_model="multilingual"))
    assert "[multilingual] extra" in caught.value.text


def test_the_onnx_writer_is_loaded_only_for_the_multilingual_model():
    program = "import sys, almanac.app; print([name for name in sys.modules if name.startswith('almanac.ai.onnx')])"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


def test_a_url_that_is_none_is_refused():
    with pytest.raises(InvalidSetting, match="embedding_url"):
        load({"ALMANAC_EMBEDDING_URL": "file:///etc/passwd"})


def test_the_key_is_never_shown():
    assert "sk-1" not in repr(load({"ALMANAC_EMBEDDING_KEY": "sk-1"}).settings)
