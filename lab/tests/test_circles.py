# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Circles of made-up crates are named, and what is no circle is not."""

from pathlib import Path

import pytest

from demeter_lab.circles import Crate, code_of, main, told, without_tests


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
        "#[cfg(all(unix, test))]\nmod tests { use crate::b::B; }",
        '#[cfg(all(any(test), feature = "x"))]\nfn f() -> u8 { crate::b::g(); 0 }',
        "#[cfg(test)]\nconst F: fn() = { crate::b::g };",
        "pub use crate::b::g;\nfn f(x: X) { let g = x.g; x.g(); X { g: g }; }",
        "use super::*;\nfn f() { B::new(); }",
        "fn f() { let b = 0; b::<u8>(); other::b::f(); crate::b(); }",
        "use other::b;",
    ],
)
def test_what_makes_no_circle(tmp_path: Path, back: str) -> None:
    assert crate(tmp_path, {"a.rs": back, "b.rs": "use crate::a::A;\n"}) == []
    # What follows is still read.
    files = {"a.rs": back + "\nuse crate::b::C;", "b.rs": "use crate::a::A;\n"}
    assert crate(tmp_path, files) != []


@pytest.mark.parametrize(
    "use",
    [
        "#[cfg(not(test))]\nuse crate::b::B;",
        "#[cfg(any(unix, test))]\nuse crate::b::B;",
        '#[cfg(feature = "test")]\nuse crate::b::B;',
    ],
)
def test_what_is_not_for_tests_alone_counts(tmp_path: Path, use: str) -> None:
    assert crate(tmp_path, {"a.rs": use, "b.rs": "use crate::a::A;\n"}) != []


@pytest.mark.parametrize(
    "item",
    [
        "struct S { x: u8, #[cfg(test)] t: u8 }",
        "struct S { #[cfg(test)] pub t: HashMap<u8, Vec<GONE>>, KEPT: u8 }",
        "struct S(u8, #[cfg(test)] GONE);",
        "enum E { #[cfg(test)] GONE(u8, u8), KEPT }",
        "enum E { #[cfg(test)] GONE { a: u8, b: u8 }, KEPT }",
        "fn f() { match x { #[cfg(test)] X(GONE) if a < b => GONE(), _ => KEPT, } }",
        "fn f() { match x { #[cfg(test)] X { GONE } => GONE, _ => KEPT, } }",
        "fn f() { S { #[cfg(test)] t: GONE, KEPT } }",
        "fn f() { #[cfg(test)] GONE.call(a, b); KEPT }",
        "#[cfg(test)] let x = if a { GONE } else { GONE }; KEPT",
        "#[cfg(test)] #[inline] pub(crate) fn f<A, B>() where A: X, B: Y { GONE } KEPT",
        "#[cfg(test)] impl<A, B> X<A, B> for Y { fn f() { GONE; GONE } } KEPT",
    ],
)
def test_what_is_for_tests_ends_where_it_ends(item: str) -> None:
    code = without_tests(item + " fn after() {}")[0]
    assert "GONE" not in code and code.endswith("fn after() {}")
    assert ("KEPT" in code) == ("KEPT" in item)


def test_a_circle_behind_a_field_for_tests_is_seen(tmp_path: Path) -> None:
    files = {
        "a.rs": "struct A {\n    x: u8,\n    #[cfg(test)]\n    seen: u8,\n}\nuse crate::b::B;\n",
        "b.rs": "use crate::a::A;\n",
    }
    assert crate(tmp_path, files) != []


def test_names_by_an_import_of_all_are_used(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\nuse a::f;\nuse b::g;\n",
        "a.rs": "use super::*;\npub fn f() { g(); }\n",
        "b.rs": "use super::*;\npub fn g() { f(); }\n",
    }
    assert crate(tmp_path, files) == [
        "2 modules of crate in a circle: a, b",
        "  crate::a needs crate::b for g",
        "  crate::b needs crate::a for f",
    ]
    # By way of a module, of another import of all names, and of a value.
    files["a.rs"] = "use super::*;\npub fn f() { b::g(); }\n"
    assert crate(tmp_path, files) != []
    files["lib.rs"] = "mod a;\nmod b;\nuse a::*;\nuse b::*;\n"
    files["a.rs"] = "use super::*;\npub fn f() { Some(1).map(g); }\n"
    assert crate(tmp_path, files) != []
    # A name of one's own is another one.
    files["a.rs"] = "use super::*;\nfn g() {}\npub fn f() { g(); }\n"
    assert crate(tmp_path, files) == []


def test_what_a_file_hands_on_and_uses_counts(tmp_path: Path) -> None:
    files = {
        "a.rs": "pub(crate) use crate::b::g;\npub fn f() { g(); }\n",
        "b.rs": "pub fn g() { crate::a::f(); }\n",
    }
    assert crate(tmp_path, files)[0] == "2 modules of crate in a circle: a, b"
    files["a.rs"] = "pub(crate) use crate::b::g;\npub fn f() {}\n"
    assert crate(tmp_path, files) == []


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


def test_no_crates_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], [""]):
        try:
            assert main(words) != 0
        except SystemExit as end:
            assert end.code != 0
    assert "CRATE" in capsys.readouterr().err


def test_a_known_circle_passes_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / "known.toml"
    words = ["--known", str(known), str(tmp_path)]
    entry = f'[[circle]]\ncrate = "{tmp_path}"\nfolder = "crate"\nmodules = '
    files = {
        "a.rs": "use crate::b::B;\n",
        "b.rs": "use crate::a::A;\n",
        "c.rs": "use crate::a::A;\n",
    }
    known.write_text(entry + '["b", "a"]\n')
    assert crate(tmp_path, files) != []
    assert main(words) == 0
    # One with another module in it, or one less, is not known.
    crate(tmp_path, files | {"a.rs": "use crate::{b::B, c::C};\n"})
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "3 modules of crate in a circle: a, b, c" in said
    assert "known, but not so any more, of crate: a, b" in said
    crate(tmp_path, files | {"a.rs": ""})
    assert main(words) == 1
    for text in ("circle", "", '[[circle]]\ncrate = "x"\n', "circle = 1\n"):
        known.write_text(text)
        assert main(words) == 1
        assert "does not tell" in capsys.readouterr().out
    known.unlink()
    assert main(words) == 1
