// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that are started with more memory than asked for, and brought to
//! their sizes by balloon before COMMAND runs: how much, and by what.

use std::path::PathBuf;

use clap::ValueEnum;
use demeter_agent::protocol::{GUEST_DIR, Module, Resize};
use demeter_balloon::view::tier_name;
use serde::Serialize;

use crate::error::Error;
use crate::testbed::{self, Kernel};

const MIB: u64 = 1 << 20;
/// Linux adds and removes memory in blocks of this size.
const MEMORY_BLOCK_BYTES: u64 = 128 * MIB;
const HUGE_BYTES: u64 = 2 * MIB;

/// What brings a guest to its sizes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Nothing: the guest is started with them
    None,
    /// Demeter's double balloon, a size for each tier
    Demeter,
    /// The stock balloon, one size for both tiers together
    Virtio,
    /// A virtio-mem device for each tier
    VirtioMem,
}

/// How a guest is resized.
#[derive(Debug, Clone, Serialize)]
pub struct Balloon {
    /// By what.
    pub method: Method,
    /// What is taken before COMMAND, by tier.
    pub taken_bytes: [u64; 2],
}

impl Balloon {
    /// None where the guest is started with its sizes. `boot_bytes` are asked
    /// for; memory comes in units of the method's.
    pub fn new(
        method: Method,
        tier_bytes: [u64; 2],
        boot_bytes: [Option<u64>; 2],
    ) -> Result<Option<Self>, Error> {
        let unit = match method {
            Method::None => {
                return match boot_bytes {
                    [None, None] => Ok(None),
                    _ => Err(Error::Usage {
                        cause: "--boot-fmem and --boot-smem need a --balloon".into(),
                        next: "say which, for example --balloon demeter".into(),
                    }),
                };
            }
            Method::Demeter | Method::Virtio => HUGE_BYTES,
            Method::VirtioMem => MEMORY_BLOCK_BYTES,
        };
        let mut taken_bytes = [0; 2];
        for (node, taken) in taken_bytes.iter_mut().enumerate() {
            let tier = tier_bytes[node];
            let boot = boot_bytes[node].unwrap_or(2 * tier);
            if boot < tier || boot > 1 << 40 {
                let name = tier_name(node as u16);
                return Err(Error::Usage {
                    cause: format!("--boot-{name} is below --{name} or above 1T"),
                    next: format!("give --boot-{name} at least the size of --{name}"),
                });
            }
            *taken = (boot - tier).next_multiple_of(unit);
        }
        Ok(Some(Self {
            method,
            taken_bytes,
        }))
    }

    /// What a node has on boot beyond what stays, its map of pages included.
    pub fn boot_extra_bytes(&self, node: usize) -> u64 {
        let taken = self.taken_bytes[node];
        let map = taken / 32;
        match self.method {
            // In a device of its own.
            Method::VirtioMem => map,
            _ => taken + map,
        }
    }

    /// Bytes of memory devices, by node.
    pub fn device_bytes(&self) -> [u64; 2] {
        match self.method {
            Method::VirtioMem => self.taken_bytes,
            _ => [0; 2],
        }
    }

    /// The driver: its name in the guest, and its file.
    pub fn module(&self, kernel: &Kernel) -> Result<PathBuf, Error> {
        if self.method == Method::Demeter {
            return testbed::module(&kernel.release, self.module_name());
        }
        let path = (kernel.vmlinuz)
            .with_file_name("modules")
            .join(self.module_name());
        if path.exists() {
            Ok(path)
        } else {
            Err(Error::Testbed {
                cause: format!("{} is missing", path.display()),
            })
        }
    }

    fn module_name(&self) -> &'static str {
        match self.method {
            Method::Virtio => "virtio_balloon.ko",
            Method::VirtioMem => "virtio_mem.ko",
            Method::Demeter | Method::None => "demeter_balloon.ko",
        }
    }

    /// Where the driver lies in the guest.
    pub fn module_path(&self) -> String {
        format!("{GUEST_DIR}/modules/{}", self.module_name())
    }

    /// What the agent does.
    pub fn resize(&self) -> Resize {
        Resize {
            module: Module {
                path: self.module_path(),
                params: String::new(),
            },
            plugged_bytes: self.device_bytes().to_vec(),
            taken_bytes: self.taken_bytes.to_vec(),
            by_node: self.method != Method::Virtio,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_in_units() {
        let of = |method, boot| Balloon::new(method, [100 * MIB, 512 * MIB], [Some(boot), None]);
        let demeter = of(Method::Demeter, 201 * MIB).unwrap().unwrap();
        assert_eq!(demeter.taken_bytes, [102 * MIB, 512 * MIB]);
        assert!(demeter.boot_extra_bytes(0) > 102 * MIB);
        let plugged = of(Method::VirtioMem, 201 * MIB).unwrap().unwrap();
        assert_eq!(plugged.taken_bytes, [128 * MIB, 512 * MIB]);
        assert!(plugged.boot_extra_bytes(0) < 128 * MIB);
        assert!(of(Method::Demeter, 99 * MIB).is_err());
        assert!(of(Method::None, 200 * MIB).is_err());
    }
}
