"""Source code: definitions and their names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import source_code
from tests.knowledge.parsers.test_parse_file import assert_valid


def names(text: str, extension: str) -> list[str]:
    blocks = tuple(source_code.blocks(text, source_code.LANGUAGES.get(extension, source_code.KEYWORD)))
    assert_valid(ParsedFile(text, blocks))
    return [block.name for block in blocks]


@pytest.mark.parametrize(
    ("extension", "text", "expected"),
    [
        ("py", "x = 1\n\n\n@a\n# why\ndef f(\n    a,\n):\n    def g(): ...\n\ny = 2\n", ["", "f", ""]),
        ("py", '"""def no(): in prose\nclass Not:\n"""\nclass A(B):\n    """Doc."""\n    def m(self): ...\n',
         ["", "A", "A.m"]),
        ("js", "function a() {}\nconst b = async (x) => {\n  if (x) {\n  }\n};\nclass C {\n  get d() {\n  }\n}\n",
         ["a", "b", "C", "C.d"]),
        ("cs", "namespace N\n{\n    public sealed class C : B\n    {\n        public async Task<int> Run(string s)\n"
         "        {\n            if (s == null) return 1;\n        }\n    }\n}\n", ["N", "N.C", "N.C.Run"]),
        ("c", "#include <a.h>\n\nstatic int add(int a, int b)\n{\n    return a + b;\n}\n\nint n = 3;\n",
         ["", "add", ""]),
        ("kt", "data class P(val x: Int)\n\nclass K {\n    suspend fun go(): Int {\n        return 1\n    }\n}\n",
         ["P", "K", "K.go"]),
        ("swift", "struct S {\n    mutating func move() {\n    }\n}\nextension S {\n    func more() {}\n}\n",
         ["S", "S.move", "S", "S.more"]),
        ("scala", "object O {\n  def f(x: Int): Int = x\n}\ncase class C(a: Int)\n", ["O", "O.f", "C"]),
        ("php", "<?php\nclass P\n{\n    public static function make() {\n    }\n}\nfunction top() {}\n",
         ["", "P", "P.make", "top"]),
        ("sql", "SELECT 1;\n\ncreate table a (\n  b int\n);\nDROP TABLE c;\n", ["", "a", ""]),
        ("txt", "nothing\ndefined here\n", [""]),
    ],
)  # fmt: skip
def test_definitions_are_found(extension: str, text: str, expected: list[str]):
    assert names(text, extension) == expected


LINES = ["def a():", "class B {", "  def c(x)", "}", "/*", "*/", '"""', "", "\tx = 1", "int f(int x)", "# note",
         "func g()", "end", "create table t (", "    @x"]  # fmt: skip


@given(st.sampled_from(["py", "js", "c", "rb", "sql", "go"]), st.lists(st.sampled_from(LINES), max_size=20))
def test_blocks_contain_all_of_any_code(extension: str, lines: list[str]):
    names("\n".join(lines), extension)
