// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder of the host as read-only persistent memory of the guest: input
//! that occupies neither tier until the program copies it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// virtio-pmem wants whole huge pages.
const ALIGNMENT_BYTES: u64 = 2 << 20;

/// Writes the image of `directory` to `image` and returns its size in bytes.
///
/// The same folder gives the same image, so that runs stay comparable.
pub fn make_image(directory: &Path, image: &Path) -> Result<u64, Error> {
    let failed = |cause: String| Error::Usage {
        cause: format!("--data {}: {cause}", directory.display()),
        next: "name a readable folder; mkfs.erofs is set up by `make setup`".into(),
    };
    if !directory.is_dir() {
        return Err(failed("is no folder".into()));
    }
    let output = Command::new("mkfs.erofs")
        .args(["--quiet", "-x-1", "-T0", "-Enoinline_data"])
        .arg("-U00000000-0000-4000-8000-000000000001")
        .arg(image)
        .arg(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| failed(format!("cannot run mkfs.erofs: {cause}")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!(
            "mkfs.erofs: {}",
            words.lines().last().unwrap_or("failed").trim()
        )));
    }
    let bytes = fs::metadata(image)
        .map_err(|cause| Error::file("read", image, cause))?
        .len()
        .next_multiple_of(ALIGNMENT_BYTES);
    File::options()
        .write(true)
        .open(image)
        .and_then(|file| file.set_len(bytes))
        .map_err(|cause| Error::file("write", image, cause))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_folder() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("f");
        fs::write(&file, "x").unwrap();
        let error = make_image(&file, &place.path().join("image")).unwrap_err();
        assert!(error.to_string().contains("is no folder"), "{error}");
    }
}
