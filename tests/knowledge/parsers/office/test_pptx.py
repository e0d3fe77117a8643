"""Charts and diagrams, which the corpus does not contain."""

import zipfile
from pathlib import Path

from almanac.knowledge.parsers.office import pptx

CHART = (
    "<chartSpace><title><p><t>Honey</t></p></title><ser><tx><pt idx='0'><v>kg</v></pt></tx>"
    "<cat><pt idx='0'><v>2024</v></pt><pt idx='1'><v>2025</v></pt></cat>"
    "<val><pt idx='0'><v>31.5</v></pt><pt idx='1'><v>44</v></pt></val></ser></chartSpace>"
)


def relations(**targets: str) -> str:
    rows = "".join(f'<Relationship Id="{key}" Type="x/y" Target="{target}"/>' for key, target in targets.items())
    return f"<Relationships>{rows}</Relationships>"


def test_charts_and_diagrams_of_a_slide_are_parsed(tmp_path: Path):
    frame = '<graphicFrame><{} xmlns:r="urn:r" r:{}="{}"/></graphicFrame>'
    parts = {
        "ppt/presentation.xml": '<presentation xmlns:r="urn:r"><sldId id="256" r:id="s"/></presentation>',
        "ppt/_rels/presentation.xml.rels": relations(s="slides/1.xml"),
        "ppt/slides/1.xml": f"<sld>{frame.format('chart', 'id', 'c')}{frame.format('relIds', 'dm', 'd')}</sld>",
        "ppt/slides/_rels/1.xml.rels": relations(c="../charts/c.xml", d="/ppt/d.xml"),
        "ppt/charts/c.xml": CHART,
        "ppt/d.xml": "<dataModel><pt><p><t>sow</t></p></pt><pt/><pt><p><t>reap</t></p></pt></dataModel>",
    }
    file = tmp_path / "x.pptx"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    parsed = pptx.parse(file, "x.pptx")
    assert parsed.text == "Honey\n\n|  | kg |\n| --- | --- |\n| 2024 | 31.5 |\n| 2025 | 44 |\n\n- sow\n- reap"
