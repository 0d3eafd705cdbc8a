// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder, a compiler, and the library preloaded with little DRAM.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library that cargo built for this test.
pub fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let deps = deps.parent().unwrap();
    let built = [
        deps.join("libdemeter_extmem.so"),
        deps.join("../libdemeter_extmem.so"),
    ];
    let newest = built
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("cargo builds the cdylib with the tests")
}

/// A place to run programs in.
pub struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        }
    }

    #[allow(dead_code, reason = "not every test file uses it")]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn compile(&self, name: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
        let program = self.folder.path().join(name);
        let built = Command::new("cc")
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(&source)
            .args(flags)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", text(&built));
        program
    }

    /// The program with 24 MiB of DRAM.
    pub fn paged(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("DEMETER_EXTMEM_DRAM", "24M")
            .env("DEMETER_EXTMEM_SWAP", self.folder.path())
            .env("DEMETER_EXTMEM_SWAP_SIZE", "1G");
        command
    }

    pub fn assert_left_with(&self, names: &[&str]) {
        let left: Vec<_> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|entry| !names.iter().any(|name| entry == name))
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// All that a program said.
pub fn text(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
