"""The choice of an embedder, as the settings make it."""

import re

from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.embedder import Embedder
from almanac.ai.encoder import Model, ModelFolder
from almanac.ai.remote import RemoteEmbedder
from almanac.core.settings import InvalidSetting, Settings

MULTILINGUAL = "multilingual"  # the name of the model in the [multilingual] extra
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def open_embedder(settings: Settings, *, dimension: int = 0) -> Embedder:
    """The embedder that the settings ask for. An endpoint is held to a dimension where one is given."""
    model = settings.embedding_model
    if settings.embedding_url:
        if not model:
            raise InvalidSetting("embedding_url needs embedding_model: the name of the model at the endpoint.")
        return RemoteEmbedder(settings.embedding_url, model, settings.embedding_key, dimension=dimension)
    return BundledEmbedder(_find(settings), settings.embedding_threads)


def _find(settings: Settings) -> Model:
    """The model to compute with: of those in the home folder, or of those that are installed."""
    name = settings.embedding_model
    if not name:
        return DEFAULT
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            "embedding_model names neither a folder in the home's models folder nor a model at embedding_url."
        )
    folder = settings.home / "models" / name
    if name == MULTILINGUAL and not folder.exists():
        from almanac.ai.multilingual import PackagedModel  # noqa: PLC0415 - only this extra needs the ONNX writer

        return PackagedModel()
    return ModelFolder(folder)
