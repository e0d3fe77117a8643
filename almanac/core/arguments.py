"""The strict base model of arguments, and the texts that describe wrong arguments to the caller."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

MAX_ID = 2**63 - 1  # the largest integer of both databases
NOT_AN_ID = "is not an id: use one that a list or a search returned"
MAX_DESCRIBED_FIELDS = 5
MAX_DESCRIBED_PROBLEMS = 1_000  # pydantic takes 1 to 5 microseconds for each problem, even if five are described


def _in_range(number: int) -> int:
    if not 0 <= number <= MAX_ID:
        raise ValueError(NOT_AN_ID)
    return number


def _not_zero(number: int) -> int:
    if number == 0:
        raise ValueError(NOT_AN_ID)
    return number


def _not_above_max(number: int) -> int:
    if number > MAX_ID:
        raise ValueError(f"should be at most {MAX_ID}")
    return number


# The schema omits the bounds: two more numbers for each id do not help an agent.
Id = Annotated[int, AfterValidator(_in_range)]
RecordId = Annotated[Id, AfterValidator(_not_zero)]  # no record has the id 0, which stands for the top folder
Offset = Annotated[int, Field(ge=0), AfterValidator(_not_above_max)]


class Arguments(BaseModel):
    """Base model for JSON input. It converts no values and accepts no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def describe_problems(error: ValidationError, unknown: str) -> str:
    """The wrong arguments and the reasons, without the values. `unknown` is the reason for an extra argument."""
    if error.error_count() > MAX_DESCRIBED_PROBLEMS:
        return f"More than {MAX_DESCRIBED_PROBLEMS:,} arguments or items are wrong."
    found: list[str] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_DESCRIBED_FIELDS]:
        where = ".".join(str(part)[:60] for part in problem["loc"]) or "arguments"
        reason = unknown if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        found.append(f"{where}: {reason}")
    return "; ".join(found) + "."


def describe_correction(error: ValidationError, model: type[BaseModel]) -> str:
    """The descriptions of the wrong arguments; the names of all arguments, if one of them is unknown."""
    if error.error_count() > MAX_DESCRIBED_PROBLEMS:
        return describe_arguments(model)
    problems = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_DESCRIBED_FIELDS]
    names = dict.fromkeys(str(part) for problem in problems for part in problem["loc"][:1])
    fields = {name: model.model_fields[name] for name in names if name in model.model_fields}
    if len(fields) < len(names) or not all(field.description for field in fields.values()):
        return describe_arguments(model)
    return " ".join(f"About {name}: {field.description}" for name, field in fields.items())


def describe_arguments(model: type[BaseModel], omit: frozenset[str] = frozenset()) -> str:
    """A sentence with the names of the arguments, for a caller who sent wrong ones."""
    names = [
        name if field.is_required() else f"{name} (optional)"
        for name, field in model.model_fields.items()
        if name not in omit
    ]
    return f"It takes: {', '.join(names)}." if names else "It takes no arguments."
