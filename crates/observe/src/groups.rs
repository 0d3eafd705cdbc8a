// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The groups among which the module apportions the fast tier: `groups/`.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// One group. Numbers are of the last epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Path of its cgroup; empty for none.
    pub cgroup: String,
    /// `none`, `present` or `gone`.
    pub state: String,
    /// Fast memory that it is guaranteed, as far as it is worth holding.
    pub floor_bytes: u64,
    /// Most fast memory that it may have; absent for any.
    pub cap_bytes: Option<u64>,
    /// In the fast tier.
    pub fmem_bytes: u64,
    /// In the slow tier.
    pub smem_bytes: u64,
    /// Of both, what is worth holding in the fast tier.
    pub worth_bytes: u64,
    /// What of the floor it is due.
    pub due_bytes: u64,
    /// Managed address spaces.
    pub processes: u64,
}

/// All groups, by name; none where the module knows no groups.
pub(crate) fn read(root: &Path) -> Result<Vec<Group>, Error> {
    let directory = root.join("groups");
    let failed = |cause| Error::of_read(root, &directory, cause);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound && root.exists() => {
            return Ok(Vec::new());
        }
        Err(cause) => return Err(failed(cause)),
    };
    let mut groups = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            groups.extend(of_directory(root, &entry.path())?);
        }
    }
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(groups)
}

/// One group; none when it was removed meanwhile.
fn of_directory(root: &Path, directory: &Path) -> Result<Option<Group>, Error> {
    let word = |name: &str| -> Result<String, Error> {
        let path = directory.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim_end().to_owned()),
            Err(cause) => Err(Error::of_read(root, &path, cause)),
        }
    };
    let number = |name: &str| -> Result<u64, Error> {
        let text = word(name)?;
        text.parse().map_err(|_| Error::Foreign {
            path: directory.join(name),
            cause: format!("\"{text}\" is no number"),
        })
    };
    let whole = || -> Result<Group, Error> {
        Ok(Group {
            name: (directory.file_name().unwrap_or_default())
                .to_string_lossy()
                .into_owned(),
            cgroup: word("cgroup")?,
            state: word("state")?,
            floor_bytes: number("floor_bytes")?,
            cap_bytes: match word("cap_bytes")?.as_str() {
                "max" => None,
                _ => Some(number("cap_bytes")?),
            },
            fmem_bytes: number("fmem_bytes")?,
            smem_bytes: number("smem_bytes")?,
            worth_bytes: number("worth_bytes")?,
            due_bytes: number("due_bytes")?,
            processes: number("processes")?,
        })
    };
    match whole() {
        Ok(group) => Ok(Some(group)),
        Err(_) if root.exists() && !directory.exists() => Ok(None),
        Err(error) => Err(error),
    }
}
