"""Checks of the text that callers send: control characters, length, prompt injection and destructive commands.

The word rules look for commands: "Delete dashboard 5" is one, "Deleted accounts by month" and "Why did revenue drop?"
are none. They stop a mistaken or misled model early and explain the remedy. They are not what protects data: every
function checks permissions by itself.

All functions are pure. Their time grows linearly with the text, which `check_instruction` limits first.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from almanac.core.errors import BadRequest

MAX_INSTRUCTION_CHARS = 2_000
MAX_NESTING = 100

_CONTROLS = dict.fromkeys((*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DESTRUCTIVE = frozenset({"delete", "remove", "drop", "destroy", "purge", "wipe"})
_OVERTURNING = frozenset({"disregard", "override", "forget"})

_OF_THESE = "(?:all|any|of|the|your|my|our|these|those)"
# Phrases that are refused wherever they stand. The text has single spaces and small letters.
_PHRASES = (
    re.compile(rf"\bignore (?:{_OF_THESE} ){{0,4}}(?:previous|prior|above) instructions?\b"),
    re.compile(rf"\bignore (?:{_OF_THESE} ){{0,4}}instructions? (?:above|before)\b"),
    re.compile(r"\bsystem prompts?\b"),
    re.compile(r"\byou(?: are|'re) now\b"),
    re.compile(r"\bjailbreak\b"),
)
_DAN = re.compile(r"\bDAN\b")

_WORD_OR_MARK = re.compile(r"\w+(?:'\w+)*|[^\w\s]|\n")
_QUOTED = re.compile(r'"[^"\n]{1,200}"|“[^”\n]{1,200}”|«[^»\n]{1,200}»|„[^“”\n]{1,200}[“”]')

_SENTENCE_ENDS = frozenset(".!?;:\n。…()[]{}<>*#•|`=")
_JOINTS = frozenset({"and", "or", "then", "but", "so", ",", "&", "/", "–", "—", "-"})
_OPENING_QUOTES = frozenset("\"'“«„")
_POLITE = _words(
    "please kindly just also now simply immediately permanently completely quickly first next finally afterwards "
    "later instead directly go ahead again ok okay hey hi hello yes no well"
)
_MODALS = _words("must should can could will would may shall need have has are ought to please now just")
_NEGATIONS = _words("not never cannot can't don't won't shouldn't mustn't wouldn't didn't doesn't without")
_ASKING = _words("who whom whose which that what where why how whether do does did")
_CONDITIONS = frozenset({"when", "if"})
_QUESTION_STARTS = _words("who whose which what where when why how do does did is are was were has have")
_SUBORDINATE = _words("if when once after before unless until that which what because who")
_WANTS = _words("want wanna need like wish love going have ready")
_ENDEAVOURS = _words("sure remember forget try proceed free continue attempt begin")
_CHANGES = _words("update change modify edit adjust use run execute write create make build call fix set")
_RUNS = frozenset({"execute", "run", "perform", "issue", "do"})
_DEMANDS = _words(
    "request requests attempt attempts ticket tickets call calls time times ask asks asked asking want wants wanted "
    "wanting trying tried failed failure decision decisions reason reasons permission permissions right rights option "
    "options intent intention intentions how where what who which likely"
)
_DETERMINERS = _words(
    "the this that these those all any every everything anything it them my our your his her their its old unused "
    "both each a an whatever"
)
_ASSETS = _words(
    "dashboard dashboards widget widgets dataset datasets datasource datasources query queries report reports alert "
    "alerts document documents table tables database databases schema row rows record records data file files chart "
    "charts everything column columns collection collections"
)
_MEASURED = _words("rate rates ratio ratios percentage frequency trend trends volume volumes vs versus per by")
_COUNTED = _words(
    "request requests event events operation operations action actions count counts call calls click clicks flag "
    "flags  job jobs"
)
_GROUPING = _words("by per over vs versus in this last since for count counts rate rates trend trends")
_AFTER_A_DROP = _words(
    "in of off by from since between during after analysis point points zone zones shipping ship shipment shipments "
    "size height test tests down me us"
)
_RULES = _words(
    "instruction instructions rule rules guideline guidelines prompt prompts directive directives restriction "
    "restrictions constraint constraints safeguard safeguards guardrail guardrails programming persona told said "
    "conversation context"
)
_ALL_THAT = _words("all everything anything what whatever of any that was is has been you i we came comes went the")
_BEFORE = _words("above before previous prior earlier")
_NEVER = 1_000_000_000  # beyond the end of every clause
_SECRETS = _words("prompt prompts instruction instructions password passwords secret secrets credentials")


class InstructionBlocked(BadRequest):
    """Instruction blocked."""

    code = "instruction_blocked"


def strip_controls(value: Any, depth: int = 0) -> Any:
    """Return a JSON value without control characters in its texts and keys. Tab, LF and CR stay."""
    if isinstance(value, str):
        return _strip_text(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_NESTING:
        raise BadRequest("The arguments are nested too deeply.", remedy="Send a flatter object.")
    if isinstance(value, list):
        return [strip_controls(item, depth + 1) for item in cast("list[Any]", value)]
    items = cast("dict[str, Any]", value)
    stripped = {_strip_text(name): strip_controls(item, depth + 1) for name, item in items.items()}
    if len(stripped) < len(items):
        raise BadRequest(
            "Two names of one object differ in control characters only.", remedy="Give each field a name of its own."
        )
    return stripped


def _strip_text(text: str) -> str:
    # Most texts have no control character, and this test takes a tenth of the time of the translation.
    return text if text.isprintable() else text.translate(_CONTROLS)


def check_instruction(name: str, text: str) -> None:
    """Refuse an instruction, a question or a search text that is too long or looks like a prompt injection."""
    if len(text) > MAX_INSTRUCTION_CHARS:
        raise BadRequest(
            f"{name}: it has {len(text):,} characters, and at most {MAX_INSTRUCTION_CHARS:,} are accepted.",
            remedy="Shorten it, or split the request.",
        )
    if (found := _injection(text)) is not None:
        raise InstructionBlocked(
            f'Instruction blocked: "{found}" looks like a prompt injection.',
            remedy="Say what you want to know or to have done, without commands about rules or instructions.",
        )


def check_not_destructive(text: str) -> None:
    """Refuse an instruction that deletes something."""
    for clause in _clauses(_without_quotations(_normalised(text))):
        for index, word in enumerate(clause.words):
            if word in _DESTRUCTIVE and clause.deletes(index):
                raise InstructionBlocked(
                    f'Instruction blocked: "{word}" is a destructive command, which knowi_do does not run.',
                    remedy="Use knowi_delete with assetType, assetId and confirm: true.",
                )


def _injection(text: str) -> str | None:
    """The words of a text that look like a prompt injection; None if there are none."""
    normalised = _normalised(text)
    if _DAN.search(normalised):
        return "DAN"
    line = " ".join(normalised.casefold().split())
    for phrase in _PHRASES:
        if found := phrase.search(line):
            return found[0]
    for clause in _clauses(normalised):
        for index, word in enumerate(clause.words):
            if (found := clause.injection(index, word)) is not None:
                return found
    return None


@dataclass(slots=True)
class _Clause:
    """The words and marks between two ends of a sentence."""

    words: list[str] = field(default_factory=list[str])
    is_glued: list[bool] = field(default_factory=list[bool])  # to the word or mark before
    is_question: bool = False
    first_word: str = ""  # that is not polite
    asks_from: int = _NEVER  # the index of the first question word or relative pronoun
    conditional_from: int = _NEVER  # of the first "if" or "when"

    def append(self, word: str, *, is_glued: bool) -> None:
        """Add a word or mark."""
        index = len(self.words)
        if word in _CONDITIONS:
            self.conditional_from = min(self.conditional_from, index)
        elif word in _ASKING:
            self.asks_from = min(self.asks_from, index)
        if not self.first_word and word not in _POLITE:
            self.first_word = word
        self.words.append(word)
        self.is_glued.append(is_glued)

    def injection(self, index: int, word: str) -> str | None:
        """The words of a command to the assistant that begins here."""
        after = self._after(index, 8)
        if word == "act" and after[:1] == ["as"] and self._is_command(index):
            return "act as"
        if word == "pretend" and self._is_command(index):
            return word
        if word in _OVERTURNING and _concerns_rules(after) and self._is_command(index):
            return word
        if word == "reveal" and after[:1] in (["the"], ["your"], ["system"]):
            return f"reveal {after[0]}" if self._is_command(index) or _SECRETS.intersection(after) else None
        return None

    def deletes(self, index: int) -> bool:
        """Whether the destructive word is a command."""
        if self._is_compound(index) or self._is_noun(index):
            return False
        place = self._place(index)
        if place == "joined":
            return self._has_object(index, is_strict=self._asks_before(index))
        return place in ("command", "intention") or (place == "purpose" and self._has_object(index, is_strict=False))

    def _is_command(self, index: int) -> bool:
        if self._is_compound(index):
            return False
        place = self._place(index)
        return place == "command" or (place == "joined" and not self._asks_before(index))

    def _is_compound(self, index: int) -> bool:
        """Whether a hyphen joins the word to another, as in "drop-off"."""
        words, last = self.words, len(self.words) - 1
        joined_before = index > 1 and words[index - 1] == "-" and self.is_glued[index] and self.is_glued[index - 1]
        joined_after = index + 1 < last and words[index + 1] == "-" and self.is_glued[index + 1]
        return joined_before or (joined_after and self.is_glued[index + 2])

    def _is_noun(self, index: int) -> bool:
        """Whether the words after it show that it names something that is measured, as in "drop rate by carrier"."""
        first, second = (*self._after(index, 2), "", "")[:2]
        if self.words[index] == "drop" and first in _AFTER_A_DROP:
            return True
        return first in _MEASURED or (first in _COUNTED and second in _GROUPING)

    def _place(self, index: int) -> str:
        """The place of a verb: "command", "joined" (by "and" or a comma), "intention", "purpose", or none of them."""
        words = self.words
        before = index - 1
        while before >= 0 and words[before] in _POLITE:
            before -= 1
        if before < 0:
            return "command"
        if words[before] in _NEGATIONS or (before and words[before] == "to" and words[before - 1] in _NEGATIONS):
            return ""
        if words[before] in _JOINTS:
            return "joined"
        if words[before] in _OPENING_QUOTES or self._is_addressed(before):
            return "command"
        if self._is_intended(before):
            return "intention"
        is_run = words[before] in _RUNS and not self._asks_before(before)
        return "purpose" if is_run or self._is_purpose(before) else ""

    def _is_addressed(self, before: int) -> bool:
        """Whether the assistant is to do it, as in "you must …", "can you …", "let's …" or "your task is to …"."""
        words = self.words
        if words[before] in ("let's", "lets") or words[max(before - 2, 0) : before + 1] == ["from", "now", "on"]:
            return True
        subject = before
        while subject >= 0 and before - subject < 4 and words[subject] in _MODALS:
            subject -= 1
        if subject < 0:
            return False
        if words[subject] in ("you", "assistant"):
            is_asked = words[0] in _QUESTION_STARTS and words[0] not in ("do", "did", "have", "are")
            return not is_asked and not (subject and words[subject - 1] in _SUBORDINATE)
        return words[before] == "to" and "your" in words[max(before - 4, 0) : before]

    def _is_intended(self, before: int) -> bool:
        """Whether the caller wants it, as in "I want to …", "help me …" or "make sure to …"."""
        words = self.words
        if words[before] in ("me", "us") and before and words[before - 1] in ("help", "let"):
            return True
        if words[before] != "to" or not before:
            return False
        wish, earlier = words[before - 1], words[max(before - 5, 0) : before - 1]
        if wish in _WANTS and {"i", "we", "i'd", "we'd", "i'm", "we're"}.intersection(earlier):
            return True
        is_own = wish in _ENDEAVOURS and not self._asks_before(before) and not _is_of_others(earlier)
        return is_own or wish in ("me", "us")

    def _is_purpose(self, before: int) -> bool:
        """Whether a change is made for it, as in "update the dashboard to …"."""
        words = self.words
        if words[before] != "to" or not before or words[before - 1] in _DEMANDS or self._asks_before(before):
            return False
        return self.first_word in _CHANGES

    def _has_object(self, index: int, *, is_strict: bool) -> bool:
        """Whether the next words name what a verb acts on. Strict: a definite object of Knowi, outside questions."""
        after = self._after(index, 4)
        if not after:
            return not is_strict and self.words[index - 1] == "then"
        is_definite = after[0] in _DETERMINERS or any(word.isdigit() for word in after[:2])
        is_asset = not _ASSETS.isdisjoint(after)
        if is_strict:
            is_question = self.is_question or self.words[0] in _QUESTION_STARTS
            return is_definite and is_asset and not is_question
        return is_definite or is_asset

    def _asks_before(self, index: int) -> bool:
        """Whether a question or a relative clause has begun before the word."""
        is_conditional = self.conditional_from < index and self.words[index - 1] not in (",", "then")
        return is_conditional or self.asks_from < index

    def _after(self, index: int, number: int) -> list[str]:
        """The next words, up to a mark."""
        found: list[str] = []
        for word in self.words[index + 1 : index + 1 + number]:
            if not word[0].isalnum():
                break
            found.append(word)
        return found


def _concerns_rules(after: Sequence[str]) -> bool:
    """Whether the words after "forget", "disregard" or "override" are about rules or about what was said."""
    if _RULES.intersection(after[:6]) and not _MEASURED.intersection(after):
        return True
    if after[:1] == ["everything"] or after[:2] in (["you", "are"], ["that", "you"], ["who", "you"]):
        return True
    rest = [word for word in after if word not in _ALL_THAT]
    return len(rest) == 1 and rest[0] in _BEFORE and len(after) > 1


def _is_of_others(words: Sequence[str]) -> bool:
    """Whether the words before "forget to" have a subject, as in "customers forget to …"."""
    return bool(words) and words[-1] not in _JOINTS | _POLITE | _NEGATIONS | {"make", "be", "feel"}


def _clauses(text: str) -> Iterator[_Clause]:
    clause = _Clause()
    end = -1
    for found in _WORD_OR_MARK.finditer(text.casefold()):
        word = found[0]
        if word in _SENTENCE_ENDS:
            clause.is_question = word == "?"
            if clause.words:
                yield clause
            clause = _Clause()
        else:
            clause.append(word, is_glued=found.start() == end)
        end = found.end()
    if clause.words:
        yield clause


def _normalised(text: str) -> str:
    """The text with one form for characters that look alike, and without invisible ones."""
    folded = unicodedata.normalize("NFKC", text).replace("’", "'")
    return folded if folded.isascii() else "".join(char for char in folded if unicodedata.category(char) != "Cf")


def _without_quotations(text: str) -> str:
    """The text without quoted names, as in: a dashboard called "Drop rates"."""

    def shorten(found: re.Match[str]) -> str:
        lead = text[max(found.start() - 40, 0) : found.start()].rstrip()
        word = re.split(r"[^\w:.!?;]", lead)[-1].casefold()
        is_name = word[-1:].isalnum() and word not in _RUNS
        return '"name"' if is_name else found[0]

    return _QUOTED.sub(shorten, text)
