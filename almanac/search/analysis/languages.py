"""Languages: detects the language of a text and stems its words.

Languages with their own script are recognised word by word from the letters. Languages in Latin letters are recognised
from the most common words of the text, or from special letters. Without either, the text is treated as English.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Any

import Stemmer  # pyright: ignore[reportMissingTypeStubs]

ENGLISH = "english"
COMPOUNDING = frozenset(("german", "dutch", "swedish", "danish", "norwegian", "finnish"))  # with compound words

# Short words that few other languages have. The English ones are also left out of the index.
COMMON = {
    ENGLISH: """a about also am an and any are as at be been being but by can could did do does for from had has
        have he her his how i if in into is it its me my no not of on or our she should so some such than
        that the their them then there these they this to was we were what when where which who whom why
        will with would you your""",
    "german": """aber als auch auf aus bei bis das dass dem den der des die durch ein eine einem einen einer eines er
        es für hat ich ihr im in ist kann mit nach nicht noch nur oder sich sie sind so über um und unter
        von vor war was wenn werden wie wir wird zu zum zur""",
    "french": """au aux avec ce ces cette comme dans de des du elle en est et être il ils je la le les leur mais ne
        nous on ont ou par pas plus pour qu que qui sa sans se ses son sont sur un une vous""",
    "spanish": """al como con cuando de del donde el ella en es esta este esto ha hay la las lo los más no nos o para
        pero por que se ser si sin sobre son su sus también un una y ya""",
    "italian": """al alla anche che chi come con da dal dei del della delle di e è gli ha i il in la le lo ma nel
        nella non o per più quando questo se si sono su un una""",
    "portuguese": """ao as com como da das de do dos e é em entre essa está foi isso mais mas na não nas no nos o os ou
        para pela pelo por que se sem ser seu sua são também um uma""",
    "dutch": """aan als bij dat de den der deze die dit door een en er het hij hoe ik in is je kan maar met naar
        niet nog of om onder ook op over te tot uit van voor was wat werd wij wordt zij zijn""",
    "swedish": """att av den det de efter eller en ett för från har hur i inte jag kan med men mot någon när och om på
        som till under var vi vid är över""",
}
_WORDS = {language: frozenset(words.split()) for language, words in COMMON.items()}
_TELLING = {
    word: tuple(language for language, words in _WORDS.items() if word in words)
    for words in _WORDS.values()
    for word in words
}
_LETTERS = (("german", "äöüß"), ("spanish", "ñ¿¡"), ("portuguese", "ãõ"), ("swedish", "å"), ("french", "çèêëîïœû"))
_LATIN = re.compile(r"[a-zà-öø-ÿœß]+")
DETECTION_WORDS = 400  # the first words of a text

# The languages with their own script, and its letters.
SCRIPTS = (
    ("arabic", re.compile("[\u0600-\u06ff\u0750-\u077f]")),
    ("russian", re.compile("[\u0400-\u052f]")),
    ("greek", re.compile("[\u0370-\u03ff\u1f00-\u1fff]")),
    ("hindi", re.compile("[\u0900-\u097f]")),
    ("armenian", re.compile("[\u0530-\u058f]")),
    ("tamil", re.compile("[\u0b80-\u0bff]")),
)


def detect(text: str) -> str | None:
    """The language of a text in Latin letters, or None if no common word or letter shows it."""
    start = unicodedata.normalize("NFC", text[: 8 * DETECTION_WORDS]).lower()
    votes = dict.fromkeys(_WORDS, 0.0)
    for word in _LATIN.findall(start)[:DETECTION_WORDS]:
        told = _TELLING.get(word, ())
        for language in told:
            votes[language] += 1 / len(told)
    best = max(votes, key=lambda language: votes[language])
    if votes[best]:
        return best
    return next((language for language, letters in _LETTERS if any(letter in start for letter in letters)), None)


def is_common(word: str, language: str) -> bool:
    """Whether a word is one of the most common words of a language."""
    return word in _WORDS.get(language, ())


@lru_cache(5_000)
def stem(word: str, language: str) -> str:
    """The stem of a word."""
    return _stemmer(language).stemWord(word)


@lru_cache(50)
def _stemmer(language: str) -> Any:  # the package has no types
    return Stemmer.Stemmer(language, 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
