"""Every failure of a model.

    BadModel                bad_model               500
    WrongDimension          wrong_dimension         409
    EmbeddingRefused        embedding_refused       502
    EmbeddingUnavailable    embedding_unavailable   503, may work later

Messages never hold the text that was to be embedded, the key, or what an endpoint answered: it may repeat both.
"""

from almanac.core.errors import AlmanacError, Conflict, Unavailable


class BadModel(AlmanacError):
    """The embedding model cannot be loaded."""

    code = "bad_model"
    remedy = "Install Almanac anew, or set ALMANAC_EMBEDDING_MODEL to a model that is there."


class WrongDimension(Conflict):
    """The embedding model gives vectors of another dimension than it should."""

    code = "wrong_dimension"
    remedy = (
        "Set ALMANAC_EMBEDDING_MODEL and ALMANAC_EMBEDDING_URL to the model that the vectors were made with, "
        "or have everything embedded anew with this one."
    )


class EmbeddingRefused(AlmanacError):
    """The embedding endpoint does not take our requests."""

    code = "embedding_refused"
    status = 502
    remedy = "Check ALMANAC_EMBEDDING_URL, ALMANAC_EMBEDDING_KEY and ALMANAC_EMBEDDING_MODEL."


class EmbeddingUnavailable(Unavailable):
    """The embedding endpoint cannot be reached, or does not answer in time."""

    code = "embedding_unavailable"
    remedy = "Try again in a few seconds; an operator can check what ALMANAC_EMBEDDING_URL names."
