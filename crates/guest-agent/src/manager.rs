// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets up the memory manager under test: a module, values before COMMAND,
//! and values that wait for the region of interest.

use std::fs;
use std::io::Write as _;

use demeter_agent::protocol::{AT_ROI_PATH, Manager, Record, Write};

use crate::error::Error;
use crate::report::Reporter;

/// Loads the module, writes the values, leaves those of the region of
/// interest where the workload finds them.
pub fn set_up(manager: &Manager, reporter: &mut Reporter) -> Result<(), Error> {
    if let Some(module) = &manager.module {
        load(&module.path, &module.params)?;
    }
    write_all(manager, &manager.before, reporter)?;
    let lines: String = manager
        .at_roi
        .iter()
        .map(|write| format!("{}\t{}\n", write.path, write.value))
        .collect();
    if !lines.is_empty() {
        fs::write(AT_ROI_PATH, lines).map_err(|cause| Error::file(AT_ROI_PATH, cause))?;
    }
    Ok(())
}

/// Writes values of a manager in their order, up to the first that is refused.
pub fn write_all(
    manager: &Manager,
    writes: &[Write],
    reporter: &mut Reporter,
) -> Result<(), Error> {
    for write in writes {
        if let Err(cause) = write_value(write) {
            reporter.send(&Record::WriteFailed {
                path: write.path.clone(),
                value: write.value.clone(),
                cause: cause.to_string(),
            });
            return Err(Error::Knob {
                manager: manager.name.clone(),
                path: write.path.clone(),
                value: write.value.clone(),
                cause,
            });
        }
    }
    Ok(())
}

/// One write system call, as sysfs wants it.
pub fn write_value(write: &Write) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(&write.path)?;
    file.write_all(write.value.as_bytes())
}

/// Loads a kernel module.
pub fn load(path: &str, params: &str) -> Result<(), Error> {
    let refused = |cause: String| Error::Module {
        path: path.to_owned(),
        cause,
    };
    let file = fs::File::open(path).map_err(|cause| refused(cause.to_string()))?;
    let params =
        std::ffi::CString::new(params).map_err(|_| refused("NUL byte in parameters".into()))?;
    nix::kmod::finit_module(&file, &params, nix::kmod::ModuleInitFlags::empty())
        .map_err(|errno| refused(errno.desc().to_owned()))
}
