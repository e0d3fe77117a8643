"""Makes the files of the corpus with common programs.

    python -m tests.knowledge.corpus.make [NAME…]

It needs LibreOffice (`soffice`), `pandoc` and `chromium`, with fonts for Chinese and Arabic. The files are committed,
so that the tests need none of that; `expected.py` has the expected content of each. Source code, plain text and the
like in `files/` were written by hand and are not made here.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import numpy
import pypdfium2  # pyright: ignore[reportMissingTypeStubs]
from PIL import Image, ImageFilter

from tests.knowledge.corpus.expected import FILES

SOURCES = FILES.parent / "sources"

CHINESE = (
    "仓库每天早上六点开门，第一班员工在七点以前到达。请先检查冷藏室的温度，再把记录写进日志。\n\n"
    "如果温度高于八度，就要立刻通知值班经理，并且把药品移到备用冷柜里。每个月的最后一个星期五进行盘点，所有人都必须参加。\n"
)
JAPANESE = (
    "倉庫は毎朝六時に開きます。最初の当番は七時までに到着してください。まず冷蔵室の温度を確認し、記録簿に書きます。\n\n"
    "八度を超えたときは、すぐに当直の責任者へ連絡してください。ドアとセンサーの点検はメーカーが行います。\n"
)
RUSSIAN = (
    "Склад открывается каждое утро в шесть часов. Первая смена приходит до семи. Сначала проверьте температуру.\n\n"
    "Если температура выше восьми градусов, немедленно сообщите дежурному управляющему и запишите это в журнал.\n"
)
ARABIC = (
    "يفتح المستودع أبوابه كل صباح في الساعة السادسة. تصل الوردية الأولى قبل السابعة.\n\n"
    "افحص أولا درجة حرارة غرفة التبريد ثم سجلها في الدفتر. إذا تجاوزت ثماني درجات فأبلغ المدير المناوب فورا.\n"
)
FRENCH = (
    "L’entrepôt ouvre chaque matin à six heures. La première équipe arrive avant sept heures.\n\n"
    "Vérifiez d’abord la température de la chambre froide, puis notez-la dans le registre : "
    "c’est obligé, où que l’on soit.\n"
)
POLISH = (
    "Magazyn otwiera się codziennie o szóstej rano. Pierwsza zmiana przychodzi przed siódmą.\n\n"
    "Najpierw sprawdź temperaturę w chłodni i zapisz ją w dzienniku. Jeśli jest za wysoka, "
    "zadzwoń do kierownika dyżuru.\n"
)


def office(source: str, made: str) -> Callable[[Path], None]:
    """Convert a source with LibreOffice."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / source
            shutil.copy(FILES / source if (FILES / source).exists() else SOURCES / source, copy)
            subprocess.run(
                ["soffice", "--headless", "--convert-to", made, "--outdir", f"{folder}/out", copy], check=True
            )
            shutil.copy(next((Path(folder) / "out").iterdir()), target)

    return make


def pandoc(source: str) -> Callable[[Path], None]:
    """Convert a source with pandoc to the format of the target's name."""
    return lambda target: run("pandoc", "--standalone", str(SOURCES / source), "-o", str(target))


def printed(source: str) -> Callable[[Path], None]:
    """Let Chromium print a page."""
    page = (SOURCES / source).as_uri()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer")
    return lambda target: run("chromium", *options, f"--print-to-pdf={target}", page)


def copied(source: str) -> Callable[[Path], None]:
    return lambda target: put(target, (SOURCES / source).read_bytes())


def encoded(text: str, encoding: str) -> Callable[[Path], None]:
    return lambda target: put(target, text.replace("\n", "\r\n").encode(encoding))


def put(target: Path, content: bytes) -> None:
    target.write_bytes(content)


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def long_pdf(target: Path) -> None:
    """Five hundred pages, each with a unique sentence, printed by Chromium."""
    words = ("amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "juniper")
    pages = [
        f"<section><h1>Station {n}</h1><p>Station {n} keeps the {words[n % 10]} lantern of line {n // 10}, "
        f"and its password is {words[n // 100]}-{words[n // 10 % 10]}-{words[n % 10]}.</p></section>"
        for n in range(1, 501)
    ]
    style = "@page{size:A6;margin:8mm}section{break-after:page;font:11pt 'DejaVu Sans'}h1{font-size:14pt}"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "stations.html"
        page.write_text(f"<title>Line of stations</title><style>{style}</style>{''.join(pages)}", "utf-8")
        run(
            "chromium",
            "--headless",
            "--no-sandbox",
            "--no-pdf-header-footer",
            f"--print-to-pdf={target}",
            page.as_uri(),
        )


def scan(target: Path) -> None:
    """The first page of the printed note as a scan: grey, slightly rotated, with noise."""
    document: Any = pypdfium2.PdfDocument(FILES / "note.pdf")
    page = cast("Image.Image", document[0].render(scale=150 / 72).to_pil()).convert("L")
    askew = page.rotate(0.6, resample=Image.Resampling.BICUBIC, fillcolor=255).filter(ImageFilter.GaussianBlur(0.6))
    noise = numpy.random.default_rng(3).normal(0, 1.5, (askew.height, askew.width))
    grey = numpy.clip(numpy.asarray(askew, dtype="float32") * 0.92 + noise, 0, 255).astype("uint8")
    Image.fromarray(grey).quantize(8).save(target, dpi=(150, 150), optimize=True)


def scanned_pdf(target: Path) -> None:
    """A PDF with only the image of the scan on its page."""
    Image.open(FILES / "scan.png").convert("L").save(target, "PDF", resolution=150, quality=55)


def mail(target: Path) -> None:
    message = EmailMessage()
    message["From"] = "Léa Dubois <lea@example.org>"
    message["To"] = "The Night Shift <night@example.org>, Björn Ek <bjorn@example.org>"
    message["Subject"] = "Übergabe: the north lamp 灯塔"
    message["Date"] = "Tue, 03 Nov 2026 07:15:00 +0100"
    message["Message-ID"] = "<lamp-1@example.org>"
    message.set_content("Plain version: the north lamp flickers.\n")
    message.add_alternative(
        "<html><head><style>p{color:red}</style></head><body><h2>What happened</h2><p>The north lamp <b>flickers</b> "
        "since Sunday; the spare is in drawer 4.</p><table><tr><th>Hour</th><th>Flickers</th></tr><tr><td>22</td>"
        "<td>3</td></tr><tr><td>23</td><td>11</td></tr></table><p>Bitte tauschen. 请更换灯泡。 💡</p></body></html>",
        subtype="html",
    )
    message.add_attachment(
        b"%PDF-1.4 not really", maintype="application", subtype="pdf", filename="Wartung große Lampe.pdf"
    )
    target.write_bytes(message.as_bytes())


def notebook(target: Path) -> None:
    cells: list[Any] = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Rain gauge\n", "\n", "Readings are in millimetres."]},
        {
            "cell_type": "code",
            "execution_count": 1,
            "metadata": {},
            "source": ["rain = [4.5, 0, 12]\n", "print(sum(rain))"],
            "outputs": [{"name": "stdout", "output_type": "stream", "text": ["16.5\n"]}],
        },
    ]
    body: dict[str, Any] = {
        "cells": cells,
        "metadata": {"kernelspec": {"language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    target.write_text(json.dumps(body, indent=1), "utf-8")


def records(target: Path) -> None:
    stock = [{"sku": f"S-{n}", "name": name, "left": n * 3} for n, name in enumerate(["rope", "tar", "帆布"], 1)]
    body = {
        "shop": "Chandlery",
        "open": True,
        "address": {"street": "Quay 4", "geo": {"lat": 59.91, "lon": 10.75}},
        "stock": stock,
        "hours": [["mon", "08:00"], ["tue", "09:00"]],
    }
    target.write_text(json.dumps(body, ensure_ascii=False, indent=2), "utf-8")


def lines(target: Path) -> None:
    events = [
        {"id": 1, "event": "lamp lit", "by": {"name": "Oddny", "shift": "night"}},
        {"id": 2, "event": "fog horn 🌫️", "by": {"name": "Per", "shift": "day"}, "tags": ["fog", "horn"]},
    ]
    target.write_text("".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events), "utf-8")


def macros(target: Path) -> None:
    """The report with a part where macros would be."""
    with zipfile.ZipFile(FILES / "report.docx") as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for entry in source.infolist():
            made.writestr(entry, source.read(entry))
        made.writestr("word/vbaProject.bin", b"\x00" * 64)


LOCKING = """
import subprocess, sys, time, uno
from com.sun.star.beans import PropertyValue

def option(name, value):
    made = PropertyValue()
    made.Name, made.Value = name, value
    return made

source, target, form = sys.argv[1:]
office = subprocess.Popen(["soffice", "--headless", "--norestore", "--accept=pipe,name=almanac;urp;"])
here = uno.getComponentContext()
resolver = here.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", here)
for _ in range(60):
    try:
        there = resolver.resolve("uno:pipe,name=almanac;urp;StarOffice.ComponentContext")
        break
    except Exception:
        time.sleep(0.5)
desktop = there.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", there)
document = desktop.loadComponentFromURL(source, "_blank", 0, (option("Hidden", True),))
document.storeToURL(target, (option("FilterName", form), option("Password", "open sesame")))
document.close(True)
try:
    desktop.terminate()
except Exception:
    pass
office.wait(30)
"""


def locked(source: str, form: str) -> Callable[[Path], None]:
    """Save a source with a password, with LibreOffice controlled by the system's Python, which has `python3-uno`."""

    def make(target: Path) -> None:
        command = ["/usr/bin/python3", "-c", LOCKING, (SOURCES / source).as_uri(), target.as_uri(), form]
        subprocess.run(command, check=True, timeout=90)

    return make


MAKERS: dict[str, Callable[[Path], None]] = {
    "handbook.md": copied("handbook.md"),
    "handbook.docx": pandoc("handbook.md"),
    "handbook.odt": pandoc("handbook.md"),
    "handbook.epub": pandoc("handbook.md"),
    "handbook.rtf": pandoc("handbook.md"),
    "handbook.html": pandoc("handbook.md"),
    "note.html": copied("note.html"),
    "note.pdf": printed("note.html"),
    "report.docx": office("report.fodt", "docx"),
    "report.odt": office("report.fodt", "odt"),
    "report.rtf": office("report.fodt", "rtf"),
    "report.pdf": office("report.fodt", "pdf"),
    "report.doc": office("report.fodt", "doc"),
    "macros.docm": macros,
    "locked.odt": locked("report.fodt", "writer8"),
    "locked.ods": locked("budget.fods", "calc8"),
    "locked.xls": locked("budget.fods", "MS Excel 97"),
    "talk.pptx": pandoc("talk.md"),
    "talk.odp": office("talk.pptx", "odp"),
    "talk-resaved.pptx": office("talk.odp", "pptx"),
    "budget.xlsx": office("budget.fods", "xlsx"),
    "budget.xls": office("budget.fods", "xls"),
    "budget.ods": office("budget.fods", "ods"),
    "budget.csv": office("budget.fods", "csv:Text - txt - csv (StarCalc):59,34,76,1,,0,false,true,false,false,false,1"),
    "stations.pdf": long_pdf,
    "scan.png": scan,
    "scan.pdf": scanned_pdf,
    "lamp.eml": mail,
    "chinese-gb18030.txt": encoded(CHINESE, "gb18030"),
    "japanese-shift-jis.txt": encoded(JAPANESE, "shift_jis"),
    "japanese-euc.txt": encoded(JAPANESE, "euc_jp"),
    "russian-cp1251.txt": encoded(RUSSIAN, "cp1251"),
    "russian-koi8.txt": encoded(RUSSIAN, "koi8_r"),
    "arabic-cp1256.txt": encoded(ARABIC, "cp1256"),
    "french-cp1252.txt": encoded(FRENCH, "cp1252"),
    "polish-cp1250.txt": encoded(POLISH, "cp1250"),
    "arabic-utf16.txt": encoded("\ufeff" + ARABIC, "utf-16-be"),
    "russian-utf16-unmarked.txt": encoded("Lager 7. Lagerbuch. " + RUSSIAN, "utf-16-le"),
    "chinese-utf8-marked.txt": encoded("\ufeff" + CHINESE, "utf-8"),
    "shop.json": records,
    "events.jsonl": lines,
    "rain.ipynb": notebook,
}


def main() -> None:
    for name in sys.argv[1:] or MAKERS:
        MAKERS[name](FILES / name)
        print(f"{name}: {(FILES / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
