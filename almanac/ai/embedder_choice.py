"""Opens the embedder that the settings name."""

import re

from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.embedder import Embedder
from almanac.ai.encoder import Model, ModelFolder
from almanac.ai.remote import RemoteEmbedder
from almanac.core.settings import InvalidSetting, Settings

MULTILINGUAL = "multilingual"  # the name of the model in the [multilingual] extra
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def open_embedder(settings: Settings, *, dimension: int = 0) -> Embedder:
    """The configured embedder. An endpoint must return vectors of `dimension`, if it is given."""
    model = settings.embedding_model
    if settings.embedding_url:
        if not model:
            raise InvalidSetting("embedding_url needs embedding_model: the name of the model at the endpoint.")
        return RemoteEmbedder(settings.embedding_url, model, settings.embedding_key, dimension=dimension)
    return BundledEmbedder(_find(settings), settings.embedding_threads)


def _find(settings: Settings) -> Model:
    """The model of the configured name, in the home folder or installed."""
    name = settings.embedding_model
    if not name:
        return DEFAULT
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            "embedding_model must name a folder in the home's models folder, or a model at embedding_url."
        )
    folder = settings.home / "models" / name
    if name == MULTILINGUAL and not folder.exists():
        from almanac.ai.multilingual import PackagedModel  # noqa: PLC0415 - only this extra needs the ONNX writer

        return PackagedModel()
    return ModelFolder(folder)
