"""The words that `number_conditions` reads: units, comparisons and names of quantities, in five languages.

English, German, French and Spanish words are single tokens of a question; Chinese ones are cut out of its text.
"""

# The factor converts to the first unit of the quantity.
UNITS: dict[str, dict[str, float]] = {
    "pressure": {"psi": 1, "bar": 14.5038, "kpa": 0.145038, "mpa": 145.038, "atm": 14.6959},
    "weight": {
        "kg": 1, "kilo": 1, "kilogram": 1, "kilogramm": 1, "kilogramo": 1, "kilogramme": 1, "公斤": 1, "千克": 1,
        "g": 0.001, "gram": 0.001, "gramm": 0.001, "gramme": 0.001, "gramo": 0.001, "克": 0.001, "lb": 0.453592,
        "lbs": 0.453592, "pound": 0.453592, "libra": 0.453592, "oz": 0.0283495, "ounce": 0.0283495, "ton": 1000,
        "tonne": 1000, "tonelada": 1000, "吨": 1000,
    },
    "length": {
        "m": 1, "metre": 1, "meter": 1, "mètre": 1, "metro": 1, "米": 1, "cm": 0.01, "厘米": 0.01, "mm": 0.001,
        "毫米": 0.001, "km": 1000, "kilometre": 1000, "kilometer": 1000, "公里": 1000, "in": 0.0254, "inch": 0.0254,
        "zoll": 0.0254, "pouce": 0.0254, "pulgada": 0.0254, "英寸": 0.0254, "ft": 0.3048, "foot": 0.3048,
        "feet": 0.3048, "mi": 1609.344, "mile": 1609.344,
    },
    "area": {"m²": 1, "m2": 1, "sqm": 1, "平方米": 1, "ft²": 0.092903, "sqft": 0.092903},
    "volume": {
        "l": 1, "litre": 1, "liter": 1, "litro": 1, "升": 1, "ml": 0.001, "毫升": 0.001, "gal": 3.78541,
        "gallon": 3.78541,
    },
    "power": {"w": 1, "watt": 1, "瓦": 1, "kw": 1000, "kilowatt": 1000, "千瓦": 1000, "hp": 745.7, "horsepower": 745.7,
              "ps": 735.499},
    "energy": {"kwh": 1, "wh": 0.001},
    "charge": {"mah": 1, "ah": 1000},
    "voltage": {"v": 1, "volt": 1, "伏": 1, "kv": 1000},
    "frequency": {"hz": 1, "khz": 1e3, "mhz": 1e6, "ghz": 1e9},
    "data": {"gb": 1, "gigabyte": 1, "mb": 0.001, "megabyte": 0.001, "tb": 1000, "terabyte": 1000},
    "noise": {"db": 1, "dba": 1, "decibel": 1, "dezibel": 1, "分贝": 1},
    "speed": {"kmh": 1, "km/h": 1, "kph": 1, "mph": 1.609344, "m/s": 3.6},
    "torque": {"nm": 1, "ft-lb": 1.355818},
    "time": {
        "h": 1, "hour": 1, "stunde": 1, "stunden": 1, "heure": 1, "hora": 1, "小时": 1, "minute": 1 / 60,
        "minuto": 1 / 60, "分钟": 1 / 60, "day": 24, "tage": 24, "jour": 24, "día": 24, "天": 24,
    },
}  # fmt: skip
CURRENCIES = frozenset({"dollar", "usd", "euro", "eur", "gbp", "chf", "franken", "欧元", "美元", "元"})
CURRENCY_SIGNS = frozenset("$€£¥")

COMPARISONS = {
    "lt": (
        "<", "under", "below", "less than", "lower than", "fewer than", "smaller than", "cheaper than", "lighter than",
        "shorter than", "narrower than", "quieter than", "slower than",
        "unter", "weniger als", "kleiner als", "niedriger als", "billiger als", "günstiger als", "leichter als",
        "kürzer als", "schmaler als", "leiser als", "langsamer als",
        "moins de", "inférieur à", "inférieure à", "moins cher que", "moins chère que", "moins lourd que",
        "plus léger que", "plus court que", "plus petit que",
        "menos de", "inferior a", "más barato que", "más barata que", "más ligero que", "más corto que",
        "低于", "小于", "少于", "不到", "轻于",
    ),
    "lte": (
        "<=", "≤", "up to", "at most", "no more than", "not more than", "not exceeding", "maximum of", "maximum", "max",
        "within",
        "bis", "bis zu", "höchstens", "maximal", "nicht mehr als",
        "au plus", "au maximum", "jusqu'à", "pas plus de",
        "como máximo", "como mucho", "hasta", "no más de", "máximo",
        "不超过", "最多", "至多", "最大", "最高",
    ),
    "gt": (
        ">", "over", "above", "more than", "greater than", "higher than", "larger than", "bigger than", "heavier than",
        "longer than", "wider than", "taller than", "louder than", "faster than", "exceeding",
        "über", "mehr als", "größer als", "höher als", "teurer als", "schwerer als", "länger als", "breiter als",
        "lauter als", "schneller als",
        "plus de", "supérieur à", "supérieure à", "plus cher que", "plus chère que", "plus lourd que", "plus long que",
        "plus haut que", "plus large que", "plus grand que",
        "más de", "superior a", "más caro que", "más cara que", "más pesado que", "más largo que", "más alto que",
        "más ancho que", "más grande que",
        "高于", "大于", "多于", "超过", "重于",
    ),
    "gte": (
        ">=", "≥", "at least", "no less than", "not less than", "minimum of", "minimum", "min", "starting at", "from",
        "mindestens", "wenigstens", "ab", "nicht weniger als",
        "au moins", "d'au moins", "au minimum", "à partir de", "dès", "pas moins de",
        "al menos", "por lo menos", "como mínimo", "a partir de", "desde", "no menos de", "mínimo",
        "至少", "不低于", "不少于", "最少", "最低",
    ),
    "about": ("about", "around", "approximately", "roughly", "etwa", "rund", "ungefähr", "circa", "ca", "environ",
              "unos", "unas", "alrededor de", "大约", "约"),
}  # fmt: skip
COMPARISONS_AFTER = {
    "lte": (
        "or less", "or fewer", "or lower", "or below", "or under", "or cheaper", "or lighter", "or shorter", "max",
        "maximum", "oder weniger", "oder leichter", "ou moins", "au plus", "o menos", "以下", "以内", "之内",
    ),
    "gte": (
        "+", "or more", "or higher", "or above", "or over", "or longer", "or larger", "or heavier", "and up",
        "and above", "min", "minimum", "oder mehr", "oder größer", "ou plus", "au moins", "o más", "以上",
    ),
}  # fmt: skip

# The word before the first number of a range, and the words that may then be between the numbers.
RANGE_JOINTS = {
    "between": ("and",), "zwischen": ("und",), "entre": ("et", "y", "e"), "de": ("à", "a"), "desde": ("hasta",),
    "von": ("bis",),
}  # fmt: skip
ANY_RANGE_JOINTS = ("-", "–", "to", "bis", "到", "至")

# The name of a quantity in other words: it is part of the names of metadata fields.
_PRICE = ("price", "cost")
NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("cheaper", "budget", "preis", "billiger", "günstiger", "teurer", "prix", "cher", "chère", "precio",
                     "barato", "barata", "caro", "cara", "价格", "预算"), _PRICE),
    **dict.fromkeys(("lighter", "heavier", "gewicht", "leichter", "schwerer", "poids", "léger", "lourd", "peso",
                     "ligero", "pesado", "重量"), ("weight",)),
    **dict.fromkeys(("shorter", "longer", "länge", "kürzer", "länger", "longueur", "long", "longitud", "largo",
                     "corto", "长度"), ("length",)),
    **dict.fromkeys(("taller", "höhe", "hauteur", "haut", "altura", "alto", "高度"), ("height",)),
    **dict.fromkeys(("narrower", "wider", "breite", "schmaler", "breiter", "largeur", "anchura", "ancho",
                     "宽度"), ("width",)),
    **dict.fromkeys(("quieter", "louder", "lautstärke", "leiser", "lauter", "bruit", "ruido", "噪音"), ("noise",)),
    **dict.fromkeys(("slower", "faster", "geschwindigkeit", "langsamer", "schneller", "vitesse", "velocidad", "速度"),
                    ("speed",)),
    **dict.fromkeys(("leistung", "puissance", "potencia", "功率"), ("power",)),
    **dict.fromkeys(("volumen", "capacité", "capacidad", "容量"), ("volume", "capacity")),
    **dict.fromkeys(("druck", "pression", "presión", "压力"), ("pressure",)),
    **dict.fromkeys(("reichweite", "autonomie", "autonomía", "续航"), ("range",)),
}  # fmt: skip
PRICE_NAMES = frozenset(_PRICE)

FILLERS = frozenset({
    "of", "is", "are", "a", "an", "the", "rated", "with", "that", "between", "ein", "eine", "der", "die", "das", "mit",
    "von", "zwischen", "un", "une", "le", "la", "les", "de", "des", "du", "à", "avec", "entre", "una", "el", "los",
    "con",
})  # fmt: skip
ARTICLES = frozenset({"a", "an", "the"})
NO_UNITS = frozenset({  # after a number
    "or", "and", "to", "in", "for", "with", "max", "maximum", "min", "minimum", "oder", "und", "bis", "für", "mit",
    "ou", "et", "à", "au", "pour", "avec", "o", "y", "hasta", "para", "con", "到", "至", "以下", "以上", "以内", "之内",
})  # fmt: skip

_ALL_WORDS = frozenset(
    word
    for phrases in (*COMPARISONS.values(), *COMPARISONS_AFTER.values())
    for phrase in phrases
    for word in phrase.split()
)
_ENGLISH_WORDS = frozenset({
    "under", "below", "less", "than", "lower", "fewer", "smaller", "cheaper", "lighter", "shorter", "narrower",
    "quieter", "slower", "up", "to", "at", "most", "no", "more", "not", "exceeding", "maximum", "of", "max",
    "within", "over", "above", "greater", "higher", "larger", "bigger", "heavier", "longer", "wider", "taller",
    "louder", "faster", "least", "minimum", "min", "starting", "from", "about", "around", "approximately",
    "roughly", "or", "and",
})  # fmt: skip
# A question with one of these words has the decimal comma: "1,5 kg", "1.000 Euro".
DECIMAL_COMMA_WORDS = frozenset(
    word for word in _ALL_WORDS if word.isalpha() and word not in _ENGLISH_WORDS and word[0] < "\u3000" and word != "a"
)
CHINESE_WORDS = sorted(
    (
        word
        for word in {
            *_ALL_WORDS, *ANY_RANGE_JOINTS, *CURRENCIES, *NAMES, *(unit for units in UNITS.values() for unit in units)
        }
        if word[0] >= "\u3000"
    ),
    key=lambda word: (-len(word), word),
)  # fmt: skip
