"""The errors of embedding models.

    BadModel                bad_model               500
    WrongDimension          wrong_dimension         409
    EmbeddingRefused        embedding_refused       502
    EmbeddingUnavailable    embedding_unavailable   503, a later attempt may succeed

Messages never contain the embedded text, the key, or the response of an endpoint, which may repeat both.
"""

from almanac.core.errors import AlmanacError, Conflict, Unavailable


class BadModel(AlmanacError):
    """The embedding model cannot be loaded."""

    code = "bad_model"
    remedy = "Reinstall Almanac, or set ALMANAC_EMBEDDING_MODEL to an existing model."


class WrongDimension(Conflict):
    """The embedding model returns vectors of the wrong dimension."""

    code = "wrong_dimension"
    remedy = (
        "Set ALMANAC_EMBEDDING_MODEL and ALMANAC_EMBEDDING_URL to the model that made the stored vectors, "
        "or embed everything again with this one."
    )


class EmbeddingRefused(AlmanacError):
    """The embedding endpoint refuses our requests."""

    code = "embedding_refused"
    status = 502
    remedy = "Check ALMANAC_EMBEDDING_URL, ALMANAC_EMBEDDING_KEY and ALMANAC_EMBEDDING_MODEL."


class EmbeddingUnavailable(Unavailable):
    """The embedding endpoint cannot be reached or does not answer in time."""

    code = "embedding_unavailable"
    remedy = "Try again in a few seconds; an operator can check the endpoint of ALMANAC_EMBEDDING_URL."
