"""The expected result of each file of the corpus.

`contains` are stretches of text that must occur in this order, character by character; a table is given by its lines.
`blocks` are the kinds of blocks in order, without text blocks.
"""

# ruff: noqa: E501 - the text of a file is quoted line by line

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FILES = Path(__file__).parent / "files"

OOXML = "application/vnd.openxmlformats-officedocument."
ODF = "application/vnd.oasis.opendocument."


@dataclass(frozen=True)
class Expected:
    mime_type: str
    source_type: str
    extension: str
    contains: tuple[str, ...]
    title: str = ""
    blocks: tuple[str, ...] | None = None
    omits: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    on_page: dict[str, int] = field(default_factory=dict[str, int])
    sheets: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()


CHINESE = "仓库每天早上六点开门，第一班员工在七点以前到达。请先检查冷藏室的温度，再把记录写进日志。\n\n如果温度高于八度"
JAPANESE = "倉庫は毎朝六時に開きます。最初の当番は七時までに到着してください。まず冷蔵室の温度を確認し、記録簿に書きます。\n\n八度"
RUSSIAN = (
    "Склад открывается каждое утро в шесть часов. Первая смена приходит до семи. Сначала проверьте температуру.\n\nЕсли"
)
ARABIC = "يفتح المستودع أبوابه كل صباح في الساعة السادسة. تصل الوردية الأولى قبل السابعة.\n\nافحص أولا درجة حرارة غرفة التبريد"

HANDBOOK_START = (
    "# Cold Store Handbook",
    "The cold store keeps medicines between two and eight degrees. Everyone who works in it reads this handbook once a "
    "year and signs the register.[^1]",
    "## Opening the store",
    "1. Unlock the outer door at 06:00.",
    "2. Read the three thermometers and write the numbers down:",
)
HANDBOOK_ITEMS = (
    "\n  - the one by the door,\n  - the one on shelf B7,\n  - the one under the fan.\n"
    "3. Sign with your full name, not with your initials.",
)
HANDBOOK_MIDDLE = (
    "call the duty manager before anything else.",
    "### Words that look alike",
    "The cabinet marked quarantine is not the cabinet marked quarter.",
    "## Alarm levels",
)
ALARMS = (
    "| Level | Temperature | Who is called | Within |\n| --- | --- | --- | --- |\n| Green | 2–8 °C | nobody | — |\n"
    "| Amber | 8–12 °C | duty manager | 15 minutes |\n"
    "| Red | above 12 °C | duty manager \\| pharmacist | 5 minutes |",
)
CAPTION = ("Alarm levels and the people they wake",)
SCRIPT = (
    'def mean(readings: list[float]) -> float:\n    """The mean of the readings, or nan."""\n'
    '    return sum(readings) / len(readings) if readings else float("nan")',
)
HANDBOOK_END = (
    "A gap of more than three minutes counts as an alarm.",
    "## In other languages",
    "中文：冷库每天早上六点开门，温度必须保持在二到八度之间。",
    "العربية: يفتح المستودع في الساعة السادسة صباحا ويجب أن تبقى الحرارة بين درجتين وثماني درجات.",
    "日本語：倉庫は毎朝六時に開きます。",
    "Emoji: the door sign shows 🧊 and 🚫🔥, and the family entrance 👨‍👩‍👧.",
)
NOTE = ("[^1]: The register lies in the office, in the red folder. Ask for it.",)
HANDBOOK = (
    *HANDBOOK_START, *HANDBOOK_ITEMS, *HANDBOOK_MIDDLE, *CAPTION, *ALARMS, *SCRIPT, *HANDBOOK_END
)  # fmt: skip
HANDBOOK_BLOCKS = (
    "heading", "heading", "heading", "heading", "heading", "table", "heading", "code", "heading"
)  # fmt: skip

REPORT = (
    "# Harbour Report 2026",
    "# 1. Traffic",
    "The harbour received 1,284 vessels in 2026, forty more than the year before. The pilots[^1] guided every one of them.",
    "the ferry office",
    "## 1.1 Berths and fees",
    "| Berth | Length | Fee per night |\n| --- | --- | --- |\n| North pier | up to 12 m | €18 |\n"
    "| North pier | 12–20 m | €31 |\n| South pier | closed for repair until August |  |\n",
    "After the table comes an ordinary sentence.",
    "# 2. Duties",
    "a) Light the lamps before dusk.\nb) Check the moorings:\n  - twice in a storm,\n  - once otherwise.\nc) Write the log.",
    "港口在二〇二六年接待了一千二百八十四艘船。领航员分两班工作。",
    "استقبل الميناء في عام ٢٠٢٦ ألفا ومئتين وأربعا وثمانين سفينة.",
    "Signal flags: ⛵️ 🚢 🇳🇴 and the pilot 👩🏽‍✈️.",
    "[^1]: Six pilots work in two shifts; the seventh retired in May.",
)
NESTED = ("| Fish quay | cutters, free; trawlers, half price | ask the harbour master |",)
BOX = ("Box: the breakwater is closed on Mondays.",)
REPORT_BLOCKS = ("heading", "heading", "heading", "table", "heading")
DELETED = ("nobody should find",)

TALK = (
    "# Bees on the roof",
    "Ada Brandt",
    "## The first spring",
    "## What the hives need",
    "- Morning sun and no wind\n- Water within fifty metres\n  - a tray with pebbles will do\n- Neighbours who like honey 🐝",
    "Notes: Show the photograph of the tray. 蜜蜂需要水。",
    "## Honey, year by year",
    "| Year | Kilograms |\n| --- | --- |\n| 2024 | 31.5 |\n| 2025 | 44 |",
    "Notes: The wet summer explains the difference.",
    "## في الختام",
    "النحل لا يلسع إلا إذا خاف.",
)
TALK_BLOCKS = ("heading", "heading", "heading", "heading", "table", "heading")
TALK_PAGES = {"Ada Brandt": 1, "Morning sun": 3, "蜜蜂需要水": 3, "31.5": 4, "إلا إذا خاف": 5}

BUDGET_ROWS = (
    "| Oak boards | 1200 | 800.5 | 2000.5 | 2026-03-31 |\n| 螺丝 (screws) | 3 | 4 | 7 | 2026-06-30 |\n"
    "| الغراء (glue) 🪵 | 0.1 | 0.2 | 0.3 | 2026-12-24 |",
)
BUDGET_HEADER = (
    "Workshop budget for 2026\n\n| Item | First half Q1 | First half Q2 | Total | Due |\n| --- | --- | --- | --- | --- |\n",
)
PEOPLE = (
    "# People",
    "| Name | Role |\n| --- | --- |\n| Jonas Reyes | joiner |\n| Wen Li \\| apprentice | turner |",
    "| Key | Door |\n| --- | --- |\n| K-7 | paint shop |\n| K-9 | yard gate |",
)
BUDGET_BLOCKS = ("heading", "table", "heading", "table", "table")
SHEETS = ("Budget", "People")
BUDGET_PAGES = {"Oak boards": 1, "yard gate": 2}

ORCHARD = (
    "# Visiting the orchard",
    "The orchard has 412 trees of nineteen old kinds. Visits begin at the lower gate, where Tomás waits with the key.",
    "## When to come",
    "- April: blossom, if the frost allows\n- September: early apples\n  1. Gravensteiner\n  2. James Grieve",
    "## What it costs",
    "Prices for 2026",
    "| Group | Per person | Cider included |\n| --- | --- | --- |\n| Schools | €2.50 | no |\n| Families | €4.00 | yes |\n"
    "| Members of the society |  | yes |",
    "### Paying",
    "Pay at the gate.\nCards are taken; coins are loved.",
    "ticket --people 4 --date 2026-09-12",
    "果园每年九月开放。 يفتح البستان في سبتمبر. 🍎🍏",
)


def plain(*contains: str, encoding: str = "") -> Expected:
    return Expected(
        "text/plain", "text", "txt", contains, blocks=(), metadata={"encoding": encoding} if encoding else {}
    )


def code(mime_type: str, extension: str, symbols: str, *contains: str) -> Expected:
    return Expected(mime_type, "code", extension, contains, symbols=tuple(symbols.split()))


EXPECTED: dict[str, Expected] = {
    "handbook.md": Expected(
        "text/markdown", "text", "md",
        ("# Cold Store Handbook", "and signs the register.[^sign]", "## Opening the store", "**full name**",
         "| Red | above 12 °C |", "```python\ndef mean", "日本語：", "👨‍👩‍👧"),
        "Cold Store Handbook", ("heading", "heading", "heading", "heading", "table", "heading", "code", "heading"),
        omits=("lang: en-GB",),
        metadata={"author": "Ines Okafor", "lang": "en-GB", "keywords": "cold chain, pharmacy"},
    ),
    "handbook.docx": Expected(OOXML + "wordprocessingml.document", "file", "docx", (*HANDBOOK, *NOTE),
                              "Cold Store Handbook", HANDBOOK_BLOCKS,
                              metadata={"author": "Ines Okafor", "language": "en-GB"}),
    "handbook.odt": Expected(ODF + "text", "file", "odt", (*HANDBOOK, *NOTE), "Cold Store Handbook", HANDBOOK_BLOCKS,
                             metadata={"author": "Ines Okafor", "keywords": "cold chain, pharmacy"}),
    "handbook.epub": Expected("application/epub+zip", "file", "epub", (*HANDBOOK, "1. The register lies in the office"),
                              "Cold Store Handbook", HANDBOOK_BLOCKS, on_page={"Ines Okafor": 1, "06:00": 2},
                              metadata={"author": "Ines Okafor", "language": "en-GB"}),
    "handbook.html": Expected("text/html", "web", "html", (*HANDBOOK, "1. The register lies in the office"),
                              "Cold Store Handbook", HANDBOOK_BLOCKS),
    "handbook.rtf": Expected("application/rtf", "file", "rtf",
                             (*HANDBOOK_START, *HANDBOOK_MIDDLE, *ALARMS, *CAPTION, "def mean(", *HANDBOOK_END, *NOTE),
                             "Cold Store Handbook"),
    "note.html": Expected("text/html", "web", "html", ORCHARD, "Visiting the orchard & the press",
                          ("heading", "heading", "heading", "table", "heading", "code"),
                          omits=("script", "navigation", "hidden", "Footer", "border-collapse"),
                          metadata={"author": "Tomás Lindqvist", "language": "en"}),
    "note.pdf": Expected("application/pdf", "file", "pdf",
                         ("Visiting the orchard", "412 trees", "When to come", "James Grieve", "Families"),
                         omits=("hidden from readers",), on_page={"James Grieve": 1}),
    "report.docx": Expected(OOXML + "wordprocessingml.document", "file", "docx", REPORT, "Harbour Report 2026",
                            REPORT_BLOCKS, DELETED, {"author": "Mira Sandoval", "keywords": "harbour"}),
    "report.odt": Expected(ODF + "text", "file", "odt", REPORT, "Harbour Report 2026", REPORT_BLOCKS, DELETED,
                           {"author": "Mira Sandoval"}),
    "report.rtf": Expected("application/rtf", "file", "rtf", REPORT, "Harbour Report 2026", REPORT_BLOCKS, DELETED,
                           {"author": "Mira Sandoval"}),
    "report.pdf": Expected("application/pdf", "file", "pdf",
                           ("The harbour received 1,284 vessels", "North pier", "Light the lamps before dusk", "港口在"),
                           on_page={"1,284": 1, "港口在": 2}),
    "macros.docm": Expected(OOXML + "wordprocessingml.document", "file", "docx", REPORT, "Harbour Report 2026"),
    "talk.pptx": Expected(OOXML + "presentationml.presentation", "file", "pptx", TALK, "Bees on the roof", TALK_BLOCKS,
                          on_page=TALK_PAGES, metadata={"author": "Ada Brandt"}),
    "talk-resaved.pptx": Expected(OOXML + "presentationml.presentation", "file", "pptx", TALK, "Bees on the roof",
                                  TALK_BLOCKS, on_page=TALK_PAGES),
    "talk.odp": Expected(ODF + "presentation", "file", "odp", TALK, "Bees on the roof", TALK_BLOCKS, on_page=TALK_PAGES),
    "budget.xlsx": Expected(OOXML + "spreadsheetml.sheet", "table", "xlsx", (*BUDGET_HEADER, *BUDGET_ROWS, *PEOPLE),
                            "Workshop budget", BUDGET_BLOCKS, on_page=BUDGET_PAGES, sheets=SHEETS,
                            metadata={"author": "Jonas Reyes"}),
    "budget.xls": Expected("application/vnd.ms-excel", "table", "xls", (*BUDGET_HEADER, *BUDGET_ROWS, *PEOPLE),
                           blocks=BUDGET_BLOCKS, on_page=BUDGET_PAGES, sheets=SHEETS),
    "budget.ods": Expected(ODF + "spreadsheet", "table", "ods", ("Workshop budget for 2026", *BUDGET_ROWS, *PEOPLE),
                           "Workshop budget", BUDGET_BLOCKS, on_page=BUDGET_PAGES, sheets=SHEETS),
    "budget.csv": Expected("text/csv", "table", "csv", ("Workshop budget for 2026", *BUDGET_ROWS), blocks=("table",)),
    "stations.pdf": Expected("application/pdf", "file", "pdf",
                             ("Station 1", "birch-amber-amber", "ember-juniper-juniper", "fjord-amber-amber"),
                             on_page={"birch-amber-amber": 100, "ember-juniper-juniper": 499, "fjord-amber-amber": 500}),
    "lamp.eml": Expected(
        "message/rfc822", "file", "eml",
        ("# Übergabe: the north lamp 灯塔", "From: Léa Dubois <lea@example.org>", "Björn Ek", "## What happened",
         "The north lamp flickers since Sunday; the spare is in drawer 4.",
         "| Hour | Flickers |\n| --- | --- |\n| 22 | 3 |\n| 23 | 11 |", "请更换灯泡。 💡",
         "Attachments: Wartung große Lampe.pdf"),
        "Übergabe: the north lamp 灯塔", ("heading", "heading", "table"), ("color:red", "Plain version", "%PDF"),
        {"author": "Léa Dubois <lea@example.org>", "created": "Tue, 03 Nov 2026 07:15:00 +0100"},
    ),
    "chinese-gb18030.txt": plain(CHINESE, encoding="gb18030"),
    "chinese-utf8-marked.txt": plain(CHINESE),
    "japanese-shift-jis.txt": plain(JAPANESE, encoding="cp932"),
    "japanese-euc.txt": plain(JAPANESE, encoding="euc_jp"),
    "russian-cp1251.txt": plain(RUSSIAN, encoding="cp1251"),
    "russian-koi8.txt": plain(RUSSIAN, encoding="koi8_r"),
    "russian-utf16-unmarked.txt": plain("Lager 7. Lagerbuch. " + RUSSIAN, encoding="utf-16-le"),
    "arabic-cp1256.txt": plain(ARABIC, encoding="cp1256"),
    "arabic-utf16.txt": plain(ARABIC, encoding="utf-16"),
    "french-cp1252.txt": plain("L’entrepôt ouvre", "La première équipe", "obligé, où que l’on soit.", encoding="cp1252"),
    "polish-cp1250.txt": plain("Magazyn otwiera się codziennie o szóstej", "kierownika dyżuru", encoding="cp1250"),
    "shop.json": Expected(
        "application/json", "file", "json",
        ("shop: Chandlery\nopen: true", "address.street: Quay 4\naddress.geo.lat: 59.91",
         "stock:\n\n| sku | name | left |\n| --- | --- | --- |\n| S-1 | rope | 3 |", "| S-3 | 帆布 | 9 |",
         "hours[1]: tue, 09:00"),
        blocks=("table",),
    ),
    "events.jsonl": Expected(
        "application/jsonl", "file", "jsonl",
        ("id: 1\nevent: lamp lit\nby.name: Oddny\nby.shift: night", "event: fog horn 🌫️", "tags: fog, horn"),
        blocks=(),
    ),
    "rain.ipynb": Expected(
        "application/x-ipynb+json", "code", "ipynb",
        ("# Rain gauge", "Readings are in millimetres.", "rain = [4.5, 0, 12]\nprint(sum(rain))", "16.5"),
        "Rain gauge", ("heading", "code"),
    ),
    "ledger.py": code("text/x-python", "py",
                      "Loan Loan.is_late Loan.label Ledger Ledger.__init__ Ledger.lend count_late", "def shorten"),
    "tides.ts": code("text/x-typescript", "ts",
                     "Tide Table Almanach Almanach.constructor Almanach.next Almanach.load highest describe"),
    "Kiln.java": code("text/x-java", "java", "Kiln Kiln.Kiln Kiln.survives Kiln.first Kiln.Glaze"),
    "queue.go": code("text/x-go", "go", "Queue Order Queue.Push New"),
    "seeds.rs": code("text/x-rust", "rs", "Packet Sow Sow.sow Packet Packet.sow tally"),
    "bell.cpp": code("text/x-c++", "cpp", "tower Bell Bell.Bell ring tower.Bell.~Bell"),
    "schema.sql": code("application/sql", "sql", "keepers watches busiest"),
    "deploy.sh": code("application/x-sh", "sh", "copy_menu reload_screen"),
    "loom.rb": code("text/x-ruby", "rb", "Weaving Weaving.Loom Weaving.Loom.initialize Weaving.Loom.self.narrow "
                    "Weaving.Loom.weave?"),
}  # fmt: skip

# Files that are not read, and the reason that is given.
REFUSED = {
    "locked.odt": "encrypted",
    "locked.ods": "encrypted",
    "locked.xls": "encrypted",
    "report.doc": "unsupported_format",
}
SCANS = ("scan.png", "scan.pdf")  # read by OCR, which has tests of its own
GOLDEN = ("handbook.docx", "report.odt", "talk.pptx", "budget.xlsx", "note.html", "ledger.py")


@contextmanager
def opened(file: Path) -> Generator[Path]:
    """A file by a path without its name, which is all that a parser's process has of it."""
    with file.open("rb") as content:
        yield Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd") / str(content.fileno())
