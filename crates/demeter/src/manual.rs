// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What shells and `man` know about this command, made from its own arguments.

use std::io::Write;
use std::path::PathBuf;

use clap_complete::Shell;

use crate::error::Error;

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct Completions {
    /// Shell to write for
    shell: Shell,
}

/// Arguments of `man`.
#[derive(clap::Args)]
pub struct Pages {
    /// Folder for the pages, one a verb; made where it is missing
    #[arg(long, default_value = "out/man", value_name = "DIR")]
    out: PathBuf,
}

impl Completions {
    /// Prints the script.
    pub fn execute(&self, mut command: clap::Command) -> Result<u8, Error> {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        let _ = std::io::stdout().write_all(&script);
        Ok(0)
    }
}

impl Pages {
    /// Writes the pages.
    pub fn execute(&self, command: clap::Command) -> Result<u8, Error> {
        std::fs::create_dir_all(&self.out)
            .and_then(|()| clap_mangen::generate_to(command, &self.out))
            .map_err(|cause| Error::file("write", &self.out, cause))?;
        Ok(0)
    }
}
