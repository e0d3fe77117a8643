"""Customers' questions with numbers, and the products that meet them.

`FIRST` was written without looking at the reader of conditions. It then read 40 of these 80 questions as expected: 25
of 40 in English, all 15 without a bound, and none of 25 in other languages. More units and the words of other
languages were added for them, so that 75 are read now. `SECOND` was written after that, and 26 of its 32 questions
were read as expected at once: this is the measure for other questions. `MISSED` lists those that are read otherwise;
a test fails if a question is missing there, or is there without reason.
"""

import operator
from collections.abc import Callable
from typing import Any

import pytest

from almanac.catalogue import number_conditions

PRODUCTS: dict[str, dict[str, Any]] = {
    "ThinBook 14": {
        "price": 999, "weight_kg": 1.3, "ram_gb": 16, "storage_gb": 512, "battery_hours": 14, "screen_inches": 14,
    },
    "ThinBook 16": {
        "price": 1499, "weight_kg": 1.9, "ram_gb": 32, "storage_gb": 1000, "battery_hours": 10, "screen_inches": 16,
    },
    "WorkStation 17": {
        "price": 2799, "weight_kg": 3.1, "ram_gb": 64, "storage_gb": 2000, "battery_hours": 6, "screen_inches": 17.3,
    },
    "Drill 500": {"price": 59, "weight_kg": 1.6, "power_w": 500, "torque_nm": 35},
    "Drill 850": {"price": 119, "weight_kg": 2.2, "power_w": 850, "torque_nm": 60},
    "Hammer 1200": {"price": 219, "weight_kg": 4.8, "power_w": 1200, "torque_nm": 90},
    "Cool 120": {
        "price": 249, "weight_kg": 32, "volume_l": 120, "height_mm": 850, "noise_db": 38, "energy_kwh": 95,
    },
    "Cool 300": {
        "price": 549, "weight_kg": 58, "volume_l": 300, "height_mm": 1750, "noise_db": 35, "energy_kwh": 180,
    },
    "Arctic 450": {
        "price": 1099, "weight_kg": 81, "volume_l": 450, "height_mm": 2030, "noise_db": 41, "energy_kwh": 260,
    },
    "Cable A": {"price": 9, "length_m": 2},
    "Cable B": {"price": 15, "length_m": 5},
    "Cable C": {"price": 39, "length_m": 20},
    "City Bike": {"price": 1899, "weight_kg": 21, "range_km": 60, "max_speed_kmh": 25},
    "Tour Bike": {"price": 3299, "weight_kg": 24, "range_km": 120, "max_speed_kmh": 25},
    "Cargo Bike": {"price": 4999, "weight_kg": 38, "range_km": 80, "max_speed_kmh": 25},
    "Speed Bike": {"price": 5499, "weight_kg": 26, "range_km": 100, "max_speed_kmh": 45},
    "Phone S": {"price": 599, "display": "6.1 inch", "battery": "3900 mAh"},
    "Phone L": {"price": 899, "display": "6.7 inch", "battery": "5000 mAh"},
}  # fmt: skip


def priced(least: float, most: float) -> set[str]:
    """The products with a price within these bounds."""
    return {name for name, fields in PRODUCTS.items() if least <= fields["price"] <= most}


LIGHT = {"ThinBook 14", "ThinBook 16", "Drill 500"}
LARGE = {"Cool 300", "Arctic 450"}
QUIET = {"Cool 120", "Cool 300"}
LONG = {"Cable B", "Cable C"}

ENGLISH: dict[str, set[str]] = {
    "laptops under 2 kg": LIGHT,
    "a notebook with at least 32 GB of RAM": {"ThinBook 16", "WorkStation 17"},
    "laptop with more than 1 TB of storage": {"WorkStation 17"},
    "something lighter than 1500 g": {"ThinBook 14"},
    "laptop with a battery life of 10 hours or more": {"ThinBook 14", "ThinBook 16"},
    "screen between 14 and 16 inches": {"ThinBook 14", "ThinBook 16"},
    "drill below 100 euros": priced(0, 99),
    "power drill with 800 W or more": {"Drill 850", "Hammer 1200"},
    "drill over 1 kW": {"Hammer 1200"},
    "torque of at least 60 Nm": {"Drill 850", "Hammer 1200"},
    "fridge with no more than 40 dB": QUIET,
    "refrigerator of up to 300 litres": {"Cool 120", "Cool 300"},
    "a fridge taller than 1.8 m": {"Arctic 450"},
    "a fridge that fits under a 90 cm worktop": {"Cool 120"},
    "quieter than 36 dB": {"Cool 300"},
    "energy use below 200 kWh": {"Cool 120", "Cool 300"},
    "cable longer than 3 m": LONG,
    "at most 5 metres of cable": {"Cable A", "Cable B"},
    "a 16 ft cable or longer": LONG,
    "e-bike with a range of over 100 km": {"Tour Bike"},
    "ebike range more than 60 miles": {"Tour Bike", "Speed Bike"},
    "bike that goes faster than 25 km/h": {"Speed Bike"},
    "bikes under £2000": priced(0, 1999),
    "bikes cheaper than 3500 and a range of at least 100 km": {"Tour Bike"},
    "anything from 200 to 300 euros": priced(200, 300),
    "price less than 1,000 euros": priced(0, 999),
    "budget of 600 max for a phone": priced(0, 600),
    "max 20 kg": LIGHT | {"WorkStation 17", "Drill 850", "Hammer 1200"},
    "minimum 64 GB ram": {"WorkStation 17"},
    ">= 32 GB RAM": {"ThinBook 16", "WorkStation 17"},
    "weight < 2 kg": LIGHT,
    "between 1 and 2 kg": LIGHT,
    "2-5 kg power tool": {"WorkStation 17", "Drill 850", "Hammer 1200"},
    "something around 1000 euros": {"ThinBook 14", "Arctic 450"},
    "exactly 20 m of cable": {"Cable C"},
    "cable of 500 cm": {"Cable B"},
    "fridge with a volume from 100 up to 200 l": {"Cool 120"},
    "5 lb or less": LIGHT | {"Drill 850"},
    "phone with a display larger than 6.5 inches": {"Phone L"},
    "battery of at least 4500 mAh": {"Phone L"},
}
WITHOUT_BOUND = (
    "ThinBook 14",
    "Cool 300 manual",
    "spare parts for Drill 850",
    "Does the Hammer 1200 work with cable B?",
    "Windows 11 laptop",
    "ISO 9001 certificate",
    "compare Drill 500 and Drill 850",
    "order 4711 from 2024",
    "USB 3.2 cable",
    "2 phones for my kids",
    "iPhone 15 under the Christmas tree",
    "24/7 support over the phone",
    "top 10 gifts",
    "Which laptop has the longest battery life?",
    "not more than 250",
)
GERMAN: dict[str, set[str]] = {
    "Laptop unter 2 kg": LIGHT,
    "Kühlschrank mit mindestens 300 Liter": LARGE,
    "Bohrmaschine mit mehr als 800 Watt": {"Drill 850", "Hammer 1200"},
    "Kabel zwischen 3 und 10 Meter": {"Cable B"},
    "billiger als 100 Euro": priced(0, 99),
    "höchstens 40 dB": QUIET,
    "bis 1.000 Euro": priced(0, 1000),
    "leichter als 1,5 kg": {"ThinBook 14"},
}
FRENCH: dict[str, set[str]] = {
    "vélo à moins de 2000 euros": priced(0, 1999),
    "réfrigérateur d'au moins 300 litres": LARGE,
    "câble de plus de 3 m": LONG,
    "ordinateur entre 1 et 2 kg": LIGHT,
    "moins cher que 100 euros": priced(0, 99),
}
SPANISH: dict[str, set[str]] = {
    "portátil de menos de 2 kg": LIGHT,
    "frigorífico de al menos 300 litros": LARGE,
    "cable de más de 3 metros": LONG,
    "entre 200 y 300 euros": priced(200, 300),
    "más barato que 100 euros": priced(0, 99),
    "como máximo 40 dB": QUIET,
}
CHINESE: dict[str, set[str]] = {
    "2公斤以下的笔记本": LIGHT,
    "至少300升的冰箱": LARGE,
    "价格低于100欧元": priced(0, 99),
    "3米以上的电缆": LONG,
    "200到300欧元": priced(200, 300),
    "重量不超过20公斤": LIGHT | {"WorkStation 17", "Drill 850", "Hammer 1200"},
}
FIRST: dict[str, set[str] | None] = {
    **ENGLISH, **dict.fromkeys(WITHOUT_BOUND), **GERMAN, **FRENCH, **SPANISH, **CHINESE,
}  # fmt: skip

SECOND: dict[str, set[str] | None] = {
    "show me laptops weighing less than 1.5 kg": {"ThinBook 14"},
    "I need a cable that is 10 m or longer": {"Cable C"},
    "fridges not exceeding 1800 mm in height": {"Cool 120", "Cool 300"},
    "e-bikes up to $3,500": priced(0, 3500),
    "laptop with 32 GB RAM": {"ThinBook 16"},
    "laptops from 1000 to 1500 dollars": priced(1000, 1500),
    "half a kilowatt or more of drilling power": {"Drill 500", "Drill 850", "Hammer 1200"},
    "a drill that weighs no more than 5 pounds": LIGHT | {"Drill 850"},
    "more storage than 600 GB": {"ThinBook 16", "WorkStation 17"},
    "screen size above 15 inches": {"ThinBook 16", "WorkStation 17"},
    "battery life over 600 minutes": {"ThinBook 14"},
    "bikes with 80 km range or more": {"Tour Bike", "Cargo Bike", "Speed Bike"},
    "is the Arctic 450 louder than the Cool 300?": None,
    "ThinBook 16 vs ThinBook 14": None,
    "spare battery for Speed Bike 2023 model": None,
    "error 404 on page 3": None,
    "chapter 7 of the manual": None,
    "Gefrierschrank leiser als 40 Dezibel": QUIET,
    "Notebook ab 32 GB Arbeitsspeicher": {"ThinBook 16", "WorkStation 17"},
    "E-Bike mit mindestens 100 km Reichweite": {"Tour Bike", "Speed Bike"},
    "Kabel, 5 m oder länger": LONG,
    "Was kostet der Hammer 1200?": None,
    "perceuse de 800 watts ou plus": {"Drill 850", "Hammer 1200"},
    "un frigo de 100 à 200 litres": {"Cool 120"},
    "moins lourd que 2 kg": LIGHT,
    "cable de al menos 3 m": LONG,
    "un portátil por menos de 1.200 euros": priced(0, 1199),
    "taladro con más de 50 Nm de par": {"Drill 850", "Hammer 1200"},
    "续航超过100公里的自行车": {"Tour Bike"},
    "噪音低于40分贝的冰箱": QUIET,
    "预算600美元以内": priced(0, 600),
    "16英寸以上的屏幕": {"ThinBook 16", "WorkStation 17"},
}
QUESTIONS = {**FIRST, **SECOND}

MISSED = {
    "a fridge that fits under a 90 cm worktop",  # "worktop" says nothing of a height
    "a 16 ft cable or longer",
    "cable of 500 cm",  # an equal number in another unit
    "phone with a display larger than 6.5 inches",  # the metadata is a text: "6.7 inch"
    "battery of at least 4500 mAh",
    "half a kilowatt or more of drilling power",
    "more storage than 600 GB",
    "bikes with 80 km range or more",  # "or more" does not follow the unit
    "Notebook ab 32 GB Arbeitsspeicher",  # a name of memory that is not in the tables
    "Kabel, 5 m oder länger",
}


COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq, "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge,
}  # fmt: skip


def condition_of(question: str) -> dict[str, Any] | None:
    bounds = number_conditions.find_bounds(question)
    return number_conditions.to_condition(bounds, {field for fields in PRODUCTS.values() for field in fields})


def meets(fields: dict[str, Any], condition: dict[str, Any]) -> bool:
    if "and" in condition:
        return all(meets(fields, each) for each in condition["and"])
    if "or" in condition:
        return any(meets(fields, each) for each in condition["or"])
    value: Any = fields.get(condition["key"])
    return isinstance(value, int | float) and COMPARE[condition["op"]](value, condition["value"])


def found(question: str) -> set[str] | None:
    condition = condition_of(question)
    return None if condition is None else {name for name, fields in PRODUCTS.items() if meets(fields, condition)}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_products_that_meet_a_question_are_found(question: str):
    assert (found(question) == QUESTIONS[question]) == (question not in MISSED), found(question)
