# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Circles of made-up crates are named, and what is no circle is not."""

from pathlib import Path

import pytest

from demeter_lab.circles import Crate, code_of, main, told


def crate(place: Path, files: dict[str, str]) -> list[str]:
    for name, text in {"lib.rs": "", **files}.items():
        path = place / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(told(Crate(place / "src").graph()))


def test_a_circle_is_named_with_what_closes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\nmod c;\nmod d;\n",
        "a.rs": "use crate::b::{self, B as Other};\n",
        "b.rs": "fn f() { super::c::g::<u8>(); }\n",
        "c.rs": "use std::io;\nuse super::{a::A, d};\n",
        "d.rs": "pub struct D;\n",
    }
    assert crate(tmp_path, files) == [
        "3 modules of crate in a circle: a, b, c",
        "  crate::a needs crate::b for crate::b",
        "  crate::b needs crate::c for super::c::g",
        "  crate::c needs crate::a for super::a::A",
    ]
    assert main([str(tmp_path)]) == 1
    assert "a, b, c" in capsys.readouterr().out


def test_a_circle_is_seen_through_folders_and_names_handed_on(tmp_path: Path) -> None:
    files = {
        "outer/mod.rs": "mod deep;\npub use deep::Deep;\n",
        "outer/deep.rs": "use crate::other::Other;\n",
        "other.rs": "use crate::outer::Deep;\n",
        "outer/one.rs": "use super::Two;\n",
        "outer/two.rs": "use crate::outer::one::One;\n",
    }
    assert crate(tmp_path, files)[0] == "2 modules of crate in a circle: other, outer"
    files["outer/mod.rs"] += "pub use two::Two;\n"
    assert "2 modules of crate::outer in a circle: one, two" in crate(tmp_path, files)


def test_each_component_is_named(tmp_path: Path) -> None:
    files = {name: f"use crate::{other};\n" for name, other in zip("abcd", "badc", strict=True)}
    found = crate(tmp_path, {f"{name}.rs": text for name, text in files.items()})
    assert [line for line in found if line[0] != " "] == [
        "2 modules of crate in a circle: a, b",
        "2 modules of crate in a circle: c, d",
    ]


@pytest.mark.parametrize(
    "back",
    [
        "// use crate::b::B;",
        "/* use crate::b::B; /* */ use crate::b::B; */",
        'const TEXT: &str = "crate::b::B \\" crate::b";',
        'const TEXT: &str = r#"crate::b::B " crate::b"#;',
        "pub use crate::b::B;",
        "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}",
        "#[cfg(test)]\nuse crate::b::{A, B};",
        "fn f() { let b = 0; b::<u8>(); other::b::f(); crate::b(); }",
        "use other::b;",
    ],
)
def test_what_makes_no_circle(tmp_path: Path, back: str) -> None:
    assert crate(tmp_path, {"a.rs": back, "b.rs": "use crate::a::A;\n"}) == []
    # What follows is still read.
    files = {"a.rs": back + "\nuse crate::b::C;", "b.rs": "use crate::a::A;\n"}
    assert crate(tmp_path, files) != []


def test_a_folder_and_its_file_are_one(tmp_path: Path) -> None:
    files = {
        "policy/mod.rs": "mod one;\nuse one::ONE;\npub trait Policy {}\n",
        "policy/one.rs": "use super::Policy;\n",
    }
    assert crate(tmp_path, files) == []


def test_files_for_tests_do_not_count(tmp_path: Path) -> None:
    files = {
        "a/mod.rs": "#[cfg(test)]\nmod checks;\n",
        "a/checks.rs": "use crate::b::B;\n",
        "b.rs": "use crate::a::A;\n",
    }
    assert crate(tmp_path, files) == []
    assert crate(tmp_path, files | {"a/mod.rs": "mod checks;\n"}) != []


def test_lifetimes_are_no_characters() -> None:
    code = code_of("f<'a>(x: &'a str, c: '\\'', d: 'x') // 'a")
    assert code.split() == ["f<'a>(x:", "&'a", "str,", "c:", "0", ",", "d:", "0", ")"]


def test_a_comment_in_a_list_of_names_is_passed_over(tmp_path: Path) -> None:
    files = {
        "a.rs": "use crate::{c::C, // of it\n    b::B as Other,\n};\n",
        "b.rs": "use crate::a::A;\n",
        "c.rs": "",
    }
    assert "2 modules of crate in a circle: a, b" in crate(tmp_path, files)


def test_a_folder_without_a_crate_fails(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
