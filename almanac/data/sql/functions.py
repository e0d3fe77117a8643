"""The functions that a query may call.

A group has the reason why its functions are safe: they read only their arguments, their cost grows at most in
proportion to the size of the arguments and the result, and the same arguments give the same result. Functions that
read files, settings, the catalogue or the environment are in no group, nor are random ones and those that run text as
a query. sqlglot has a class for most functions and keeps the name of the others.
"""

from dataclasses import dataclass

from sqlglot import exp


@dataclass(frozen=True, slots=True)
class FunctionGroup:
    """Functions that are allowed for one reason."""

    reason: str
    classes: tuple[type[exp.Expr], ...] = ()
    names: str = ""  # of functions without a class, separated by blanks


CURRENT_TIME = frozenset({"now", "get_current_timestamp", "transaction_timestamp", "current_localtimestamp"})

LIMITED = (exp.Pad, exp.Repeat, exp.GenerateSeries)

GROUPS = (
    FunctionGroup(
        "Arithmetic on numbers of fixed size.",
        (
            exp.Abs, exp.Acos, exp.Asin, exp.Atan, exp.Atan2, exp.Cbrt, exp.Ceil, exp.Cos, exp.Cosh, exp.Cot,
            exp.Degrees, exp.Exp, exp.Factorial, exp.Floor, exp.Greatest, exp.IsInf, exp.IsNan, exp.Least, exp.Ln,
            exp.Log, exp.Pi, exp.Pow, exp.Radians, exp.Round, exp.Sign, exp.Sin, exp.Sinh, exp.Sqrt, exp.Tan, exp.Tanh,
            exp.Trunc,
        ),
        "bit_count even fdiv gcd isfinite lcm log2 log10",
    ),
    FunctionGroup(
        "The result of these text functions is about as long as the arguments. Regular expressions run in RE2, in "
        "linear time and limited memory.",
        (
            exp.Ascii, exp.BitLength, exp.Chr, exp.Concat, exp.ConcatWs, exp.Contains, exp.EndsWith, exp.Hex,
            exp.JarowinklerSimilarity, exp.Left, exp.Length, exp.Levenshtein, exp.Lower, exp.MD5, exp.RegexpExtract,
            exp.RegexpExtractAll, exp.RegexpFullMatch, exp.RegexpLike, exp.RegexpReplace, exp.RegexpSplit, exp.Replace,
            exp.Reverse, exp.Right, exp.SHA, exp.SHA2, exp.Split, exp.SplitPart, exp.StartsWith, exp.StrPosition,
            exp.Substring, exp.Translate, exp.Trim, exp.Unicode, exp.Upper,
        ),
        "base64 damerau_levenshtein hamming hash jaccard jaro_similarity nfc_normalize ord prefix "
        "regexp_split_to_array strip_accents strlen suffix url_decode url_encode",
    ),
    FunctionGroup(
        "These can make a small argument long, so the check of the tree limits the length, which must be a number.",
        LIMITED,
    ),
    FunctionGroup(
        "Calendar arithmetic. The current date and time are replaced by the time of the request, so that a query gives "
        "the same result when it is repeated for a receipt.",
        (
            exp.CurrentDate, exp.CurrentTimestamp, exp.Localtimestamp, exp.Date, exp.DateAdd, exp.DateSub, exp.DateBin,
            exp.DateDiff, exp.DateFromParts, exp.DateTrunc, exp.TimestampTrunc, exp.Day, exp.DayOfMonth, exp.DayOfWeek,
            exp.DayOfWeekIso, exp.DayOfYear, exp.Dayname, exp.Extract, exp.Hour, exp.LastDay, exp.Minute, exp.Month,
            exp.Monthname, exp.Quarter, exp.Second, exp.StrToTime, exp.TimeFromParts, exp.TimeToStr, exp.TimeToUnix,
            exp.TimestampFromParts, exp.ToDays, exp.UnixToTime, exp.Week, exp.WeekOfYear, exp.Year, exp.TsOrDsAdd,
        ),
        "now get_current_timestamp transaction_timestamp current_localtimestamp age century date_part datepart "
        "date_sub datesub decade epoch_ms epoch_us isoyear microsecond millisecond timezone to_hours to_minutes "
        "to_months to_seconds to_weeks to_years try_strptime weekday yearweek",
    ),
    FunctionGroup(
        "Choices and conversions. The check of the tree limits the target types of a conversion.",
        (exp.Case, exp.Cast, exp.TryCast, exp.Coalesce, exp.If, exp.Nullif, exp.Typeof, exp.And, exp.Or, exp.Xor),
    ),
    FunctionGroup(
        "Aggregates over the rows of a query.",
        (
            exp.AnyValue, exp.ApproxDistinct, exp.ApproxQuantile, exp.ArgMax, exp.ArgMin, exp.ArrayAgg, exp.Avg,
            exp.BitwiseAndAgg, exp.BitwiseOrAgg, exp.BitwiseXorAgg, exp.Corr, exp.Count, exp.CountIf, exp.CovarPop,
            exp.CovarSamp, exp.First, exp.GroupConcat, exp.Grouping, exp.Kurtosis, exp.Last, exp.LogicalAnd,
            exp.LogicalOr, exp.Max, exp.Median, exp.Min, exp.Mode, exp.PercentileCont, exp.PercentileDisc,
            exp.Quantile, exp.RegrAvgx, exp.RegrAvgy, exp.RegrCount, exp.RegrIntercept, exp.RegrR2, exp.RegrSlope,
            exp.Skewness, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Sum, exp.Variance, exp.VariancePop,
        ),
        "arbitrary entropy favg fsum geomean histogram kahan_sum mad mean product sem",
    ),
    FunctionGroup(
        "Window functions over the rows of a query.",
        (
            exp.CumeDist, exp.DenseRank, exp.FirstValue, exp.Lag, exp.LastValue, exp.Lead, exp.NthValue, exp.Ntile,
            exp.PercentRank, exp.Rank, exp.RowNumber,
        ),
    ),
    FunctionGroup(
        "Lists, records and maps. The result has at most as many elements as the arguments together.",
        (
            exp.Array, exp.ArrayAppend, exp.ArrayConcat, exp.ArrayContains, exp.ArrayDistinct, exp.ArrayFilter,
            exp.ArrayMax, exp.ArrayMin, exp.ArrayOverlaps, exp.ArrayPrepend, exp.ArraySize, exp.ArraySlice,
            exp.ArraySort, exp.ArrayToString, exp.Exists, exp.Explode, exp.Flatten, exp.Map, exp.MapKeys, exp.Struct,
            exp.StructExtract, exp.ToMap, exp.Transform, exp.Unnest,
        ),
        "array_value cardinality element_at list_any_value list_apply list_avg list_cat list_count list_element "
        "list_extract list_filter list_first list_has_all list_indexof list_intersect list_last list_median "
        "list_position list_reduce list_reverse list_reverse_sort list_select list_slice list_sum list_transform "
        "list_unique list_where list_zip map_entries map_extract map_values row",
    ),
    FunctionGroup(
        "JSON text in a field.",
        (exp.JSONArray, exp.JSONExtract, exp.JSONExtractScalar, exp.JSONKeys, exp.JSONObject, exp.JSONType),
        "json_array_length json_contains json_valid to_json",
    ),
)  # fmt: skip

CLASSES = frozenset(each for group in GROUPS for each in group.classes)
NAMES = frozenset(name for group in GROUPS for name in group.names.split())

# DuckDB's names of functions whose class has another one.
_DUCKDB_NAMES = (
    "epoch generate_series json_extract_string list list_sort quantile_cont range strftime string_agg string_split "
    "to_microseconds to_milliseconds"
)


def known_names() -> frozenset[str]:
    """The names of all allowed functions, for hints."""
    return NAMES | {name.lower() for each in CLASSES if issubclass(each, exp.Func) for name in each.sql_names()}


def names_of_built_trees() -> frozenset[str]:
    """The functions of trees that Almanac builds, which contain DuckDB's names and no classes.

    The length of a series may be computed there: the limits of the child end one that is too long.
    """
    limited = {name.lower() for each in LIMITED for name in each.sql_names()}
    return (known_names() - limited) | frozenset(_DUCKDB_NAMES.split())
