// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `testbed/setup.sh` left in the cache, and what was built beside this
//! binary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Error;

/// Version of `testbed.json` that is understood.
const FORMAT: u32 = 1;

/// `testbed.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Testbed {
    format: u32,
    /// How to start QEMU.
    pub qemu: Qemu,
    /// Guest kernels.
    pub kernels: Vec<Kernel>,
    /// Image of the guest's root file system.
    pub guest_root: PathBuf,
    /// Debian packages in it, name to version.
    #[serde(default)]
    pub guest_root_packages: BTreeMap<String, String>,
}

/// How to start QEMU.
#[derive(Debug, Clone, Deserialize)]
pub struct Qemu {
    /// For manifests.
    pub version: String,
    /// Loader, library path, binary, data.
    pub argv: Vec<String>,
    /// Environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Plugin API that was probed.
    #[serde(default)]
    pub plugin_api: u32,
}

/// A guest kernel.
#[derive(Debug, Clone, Deserialize)]
pub struct Kernel {
    /// Short name, for --kernel.
    pub name: String,
    /// `uname -r`.
    pub release: String,
    /// Image.
    pub vmlinuz: PathBuf,
    /// The same decompressed, which QEMU starts through its PVH entry: a cache
    /// that was set up before there was one boots the image, slower.
    #[serde(default)]
    pub vmlinux: Option<PathBuf>,
    /// First part of the initrd.
    pub initrd_base: PathBuf,
}

/// Major and minor number of what `uname -r` says; None where it does not begin with them.
pub fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

impl Kernel {
    /// Major and minor number; None where the release does not begin with them.
    pub fn version(&self) -> Option<(u32, u32)> {
        version_of(&self.release)
    }

    /// What QEMU is given.
    pub fn bootable(&self) -> &Path {
        self.vmlinux.as_deref().unwrap_or(&self.vmlinuz)
    }
}

/// What is wrong with `testbed.json`.
#[derive(Debug, thiserror::Error)]
enum ContractError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("format {0} where {FORMAT} is known")]
    Format(u32),
    #[error("no QEMU or no kernels in it")]
    Empty,
}

impl Testbed {
    /// Reads the cache's `testbed.json`.
    pub fn load() -> Result<Self, Error> {
        let path = cache_dir()?.join("testbed.json");
        let text = std::fs::read_to_string(&path).map_err(|cause| Error::Testbed {
            cause: format!("cannot read {}: {cause}", path.display()),
        })?;
        let testbed = Self::parse(&text).map_err(|cause| Error::Testbed {
            cause: format!("{}: {cause}", path.display()),
        })?;
        testbed.check()?;
        Ok(testbed)
    }

    fn parse(text: &str) -> Result<Self, ContractError> {
        let testbed: Self = serde_json::from_str(text)?;
        if testbed.format != FORMAT {
            return Err(ContractError::Format(testbed.format));
        }
        if testbed.qemu.argv.is_empty() || testbed.kernels.is_empty() {
            return Err(ContractError::Empty);
        }
        Ok(testbed)
    }

    /// Everything that it names exists.
    fn check(&self) -> Result<(), Error> {
        let kernels = self
            .kernels
            .iter()
            .flat_map(|kernel| [&kernel.vmlinuz, &kernel.initrd_base]);
        let decompressed = self.kernels.iter().filter_map(|k| k.vmlinux.as_ref());
        let kernels = kernels.chain(decompressed);
        for path in kernels.chain([&self.guest_root, &PathBuf::from(&self.qemu.argv[0])]) {
            if !path.exists() {
                return Err(Error::Testbed {
                    cause: format!("{} is gone", path.display()),
                });
            }
        }
        Ok(())
    }

    /// The kernel of that name or release.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, Error> {
        self.kernels
            .iter()
            .find(|kernel| kernel.name == name || kernel.release == name)
            .ok_or_else(|| {
                let known: Vec<&str> = self.kernels.iter().map(|k| k.name.as_str()).collect();
                Error::Usage {
                    cause: format!("the testbed has no kernel '{name}'"),
                    next: format!("choose --kernel from: {}", known.join(", ")),
                }
            })
    }
}

/// `$DEMETER_CACHE`, or its place below the user's cache directory.
pub fn cache_dir() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = variable("DEMETER_CACHE") {
        return Ok(cache.into());
    }
    if let Some(cache) = variable("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(cache).join("demeter"));
    }
    variable("HOME")
        .map(|home| PathBuf::from(home).join(".cache/demeter"))
        .ok_or_else(|| Error::Testbed {
            cause: "neither DEMETER_CACHE nor HOME is set".into(),
        })
}

/// Binaries made by the same `cargo build` as this one.
pub struct Built {
    /// Process 1 of the guest.
    pub agent: PathBuf,
    /// The workloads.
    pub workloads: PathBuf,
    /// The QEMU plugin.
    pub plugin: PathBuf,
}

impl Built {
    /// Looks in `$DEMETER_LIBEXEC`, else beside this binary.
    pub fn find() -> Result<Self, Error> {
        Ok(Self {
            agent: built("the guest agent", "demeter-agent")?,
            workloads: built("the workloads binary", "demeter-workloads")?,
            plugin: built("the QEMU plugin", "libdemeter_tcg_plugin.so")?,
        })
    }
}

/// The user-space pager.
pub fn pager() -> Result<PathBuf, Error> {
    built("the pager's library", "libdemeter_extmem.so")
}

/// The host daemon of the double balloon.
pub fn daemon() -> Result<PathBuf, Error> {
    built("the balloon's daemon", "demeterd")
}

/// A file in `$DEMETER_LIBEXEC`, else beside this binary, else in `libexec/demeter` next to
/// the `bin` that it was installed into.
fn built(what: &'static str, name: &str) -> Result<PathBuf, Error> {
    let directories = match std::env::var_os("DEMETER_LIBEXEC") {
        Some(directory) => vec![PathBuf::from(directory)],
        None => std::env::current_exe()
            .ok()
            .and_then(|exe| exe.canonicalize().ok())
            .and_then(|exe| exe.parent().map(homes))
            .unwrap_or_default(),
    };
    let mut paths = directories.iter().map(|directory| directory.join(name));
    let Some(wanted) = paths.next() else {
        return Err(Error::NotBuilt {
            what,
            path: PathBuf::from(name),
            next: "set DEMETER_LIBEXEC to its folder".to_owned(),
        });
    };
    if wanted.exists() {
        return Ok(wanted);
    }
    paths.find(|path| path.exists()).ok_or(Error::NotBuilt {
        what,
        path: wanted,
        next: "run `make build`, or install the package demeter".to_owned(),
    })
}

/// Where the rest of what was built or installed with a binary lies, by the binary's folder.
fn homes(directory: &Path) -> Vec<PathBuf> {
    // Integration tests run from target/<profile>/deps.
    let beside = match directory.parent() {
        Some(profile) if directory.ends_with("deps") => profile,
        _ => directory,
    };
    let mut homes = vec![beside.to_path_buf()];
    if let Some(prefix) = directory.parent()
        && directory.ends_with("bin")
    {
        homes.push(prefix.join("libexec/demeter"));
    }
    homes
}

/// A guest module (`demeter.ko`, `demeter_balloon.ko`) for a kernel release: `$DEMETER_MODULES`, else
/// `build/modules` of the source tree that this binary lies in or of the
/// working directory.
pub fn module(release: &str, name: &'static str) -> Result<PathBuf, Error> {
    let mut candidates = Vec::new();
    if let Some(directory) = std::env::var_os("DEMETER_MODULES") {
        candidates.push(PathBuf::from(directory));
    }
    if let Ok(exe) = std::env::current_exe().and_then(|exe| exe.canonicalize()) {
        candidates.extend(exe.ancestors().map(|above| above.join("build/modules")));
    }
    candidates.push(PathBuf::from("build/modules"));
    let relative = Path::new(release).join(name);
    candidates
        .iter()
        .map(|directory| directory.join(&relative))
        .find(|path| path.exists())
        .ok_or_else(|| Error::NotBuilt {
            what: "a guest module",
            path: PathBuf::from("build/modules").join(relative),
            next: format!("run `testbed/build-modules.sh` for kernel {release}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"format":1,"qemu":{"version":"11.1.3","argv":["/ld"],"env":{},"plugin_api":7},
        "kernels":[{"name":"6.12","release":"6.12.1-amd64","vmlinuz":"/v","initrd_base":"/i","build_root":"/b"}],
        "guest_root":"/r"}"#;

    #[test]
    fn reads_the_contract() {
        let testbed = Testbed::parse(TEXT).unwrap();
        assert_eq!(testbed.kernel("6.12").unwrap().release, "6.12.1-amd64");
        assert!(testbed.kernel("5.4").is_err());
    }

    #[test]
    fn looks_beside_itself_and_where_packages_put_it() {
        let of = |path: &str| homes(Path::new(path));
        assert_eq!(
            of("/src/target/release"),
            [PathBuf::from("/src/target/release")]
        );
        assert_eq!(
            of("/src/target/release/deps"),
            [PathBuf::from("/src/target/release")]
        );
        assert_eq!(
            of("/usr/bin"),
            ["/usr/bin", "/usr/libexec/demeter"].map(PathBuf::from)
        );
    }

    #[test]
    fn refuses_other_formats() {
        let refused = |from, to| Testbed::parse(&TEXT.replace(from, to)).unwrap_err();
        let format = refused("\"format\":1", "\"format\":2");
        assert!(matches!(format, ContractError::Format(2)), "{format}");
        let empty = refused("[\"/ld\"]", "[]");
        assert!(matches!(empty, ContractError::Empty), "{empty}");
        let json = Testbed::parse("{").unwrap_err();
        assert!(matches!(json, ContractError::Json(_)), "{json}");
    }
}
