// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which virtual machines there are, and which of their memory is which tier.
//!
//! The tier of memory is told, as the file that the machine's node lies in or as
//! guest physical addresses, and checked against what the monitor hands over.
//! Nothing is guessed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use demeter_balloon::view::{tier_name, tier_node};
use demeter_balloon::wire::MAX_NODES;

use crate::error::Error;
use crate::size;

/// How to know a tier's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tier {
    /// It lies in these files, compared by device and inode: a node's memory and
    /// that of memory devices which are plugged into it.
    Files(Vec<PathBuf>),
    /// It has these guest physical addresses: begin and end in bytes.
    Addresses(Vec<(u64, u64)>),
}

impl Tier {
    /// A path, or `gpa:BEGIN-END+BEGIN-END…`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(ranges) = text.strip_prefix("gpa:") else {
            if text.is_empty() {
                return Err("a tier needs a file or gpa:BEGIN-END".into());
            }
            return Ok(Self::Files(vec![text.into()]));
        };
        let mut list = Vec::new();
        for range in ranges.split('+') {
            let (begin, end) = range
                .split_once('-')
                .ok_or_else(|| format!("'{range}' is not BEGIN-END"))?;
            let (begin, end) = (size::parse_address(begin)?, size::parse_address(end)?);
            if begin >= end || begin % 4096 != 0 || end % 4096 != 0 {
                return Err(format!("'{range}' is empty or not made of 4 KiB pages"));
            }
            list.push((begin, end));
        }
        Ok(Self::Addresses(list))
    }
}

/// What a guest is entitled to; what is not said is decided by the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    /// Service class, for people.
    pub class: Option<String>,
    /// Part of what is divided by weight.
    pub weight: u32,
    /// Least FMEM.
    pub fmem_floor_bytes: u64,
    /// Most FMEM.
    pub fmem_ceiling_bytes: Option<u64>,
    /// FMEM under `static`.
    pub fmem_size_bytes: Option<u64>,
    /// Memory of all tiers: what FMEM does not hold, SMEM does.
    pub memory_bytes: Option<u64>,
}

/// One virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Its name in the interfaces.
    pub name: String,
    /// The vhost-user socket.
    pub socket: Socket,
    /// Its tiers by node.
    pub tiers: Vec<Tier>,
    /// What it is entitled to.
    pub share: Share,
}

/// Where the monitor comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Socket {
    /// We listen there.
    Path(PathBuf),
    /// A socket that listens, inherited.
    Descriptor(i32),
}

impl Vm {
    /// `NAME,socket=PATH,fmem=FILE[,smem=FILE][,KEY=VALUE…]`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default().to_owned();
        let mut draft = Draft::new(name);
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("'{word}' is not KEY=VALUE"))?;
            draft.set(key, value)?;
        }
        draft.finish()
    }
}

/// A machine whose keys come one by one, from whatever source.
pub struct Draft {
    name: String,
    socket: Option<Socket>,
    tiers: [Option<Tier>; MAX_NODES],
    share: Share,
}

impl Draft {
    /// Nothing but a name.
    pub fn new(name: String) -> Self {
        Self {
            name,
            socket: None,
            tiers: [const { None }; MAX_NODES],
            share: Share {
                weight: 100,
                ..Share::default()
            },
        }
    }

    /// One key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let share = &mut self.share;
        match key {
            "socket" => self.socket = Some(Socket::Path(value.into())),
            "class" => share.class = Some(value.to_owned()),
            "weight" => {
                share.weight = value
                    .parse()
                    .ok()
                    .filter(|weight| (1..=10_000).contains(weight))
                    .ok_or_else(|| format!("weight '{value}' is not 1 to 10000"))?;
            }
            "fmem-floor" => share.fmem_floor_bytes = size::parse(value)?,
            "fmem-ceiling" => share.fmem_ceiling_bytes = Some(size::parse(value)?),
            "fmem-size" => share.fmem_size_bytes = Some(size::parse(value)?),
            "memory" => share.memory_bytes = Some(size::parse(value)?),
            other => {
                let node = tier_node(other).ok_or_else(|| {
                    format!(
                        "unknown key '{other}'; known: socket, fmem, smem, node2, node3, class, \
                         weight, fmem-floor, fmem-ceiling, fmem-size, memory"
                    )
                })?;
                let tier = &mut self.tiers[usize::from(node)];
                match (tier.as_mut(), Tier::parse(value)?) {
                    (None, first) => *tier = Some(first),
                    (Some(Tier::Files(files)), Tier::Files(more)) => files.extend(more),
                    _ => return Err(format!("{} is given twice", tier_name(node))),
                }
            }
        }
        Ok(())
    }

    /// The socket, when it is not a path.
    pub fn socket(&mut self, socket: Socket) {
        self.socket = Some(socket);
    }

    /// All is there and fits.
    pub fn finish(self) -> Result<Vm, String> {
        let name = self.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name.starts_with('.') {
            return Err(format!(
                "'{name}' cannot name a machine: letters, digits, '-', '_' and '.' only"
            ));
        }
        let socket = self
            .socket
            .ok_or_else(|| format!("machine '{name}' has no socket"))?;
        let count = self.tiers.iter().flatten().count();
        let tiers: Vec<Tier> = self.tiers.into_iter().map_while(|tier| tier).collect();
        if tiers.is_empty() || tiers.len() != count {
            return Err(format!(
                "machine '{name}' needs fmem=, then smem=, then node2= and node3=, without a gap"
            ));
        }
        let mut distinct = BTreeSet::new();
        for tier in &tiers {
            if let Tier::Files(files) = tier
                && !files.iter().all(|file| distinct.insert(file))
            {
                return Err(format!("machine '{name}' names a file twice"));
            }
        }
        let share = self.share;
        if let Some(ceiling) = share.fmem_ceiling_bytes
            && ceiling < share.fmem_floor_bytes
        {
            return Err(format!(
                "machine '{name}' has fmem-ceiling below fmem-floor"
            ));
        }
        Ok(Vm {
            name,
            socket,
            tiers,
            share,
        })
    }
}

/// No two machines of one name or one socket.
pub fn check_fleet(vms: &[Vm]) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    let mut sockets = BTreeSet::new();
    for vm in vms {
        if !names.insert(&vm.name) {
            return Err(Error::usage(format!(
                "two machines are named '{}'",
                vm.name
            )));
        }
        if !sockets.insert(format!("{:?}", vm.socket)) {
            return Err(Error::usage(format!(
                "machine '{}' has another's socket",
                vm.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_in_a_line() {
        let vm = Vm::parse(
            "a,socket=/s,fmem=/f,smem=gpa:0x1000-0x2000+0x4000-0x8000,weight=3,fmem-floor=1G",
        )
        .unwrap();
        assert_eq!(vm.name, "a");
        assert_eq!(vm.tiers[0], Tier::Files(vec!["/f".into()]));
        assert_eq!(
            vm.tiers[1],
            Tier::Addresses(vec![(0x1000, 0x2000), (0x4000, 0x8000)])
        );
        assert_eq!(vm.share.weight, 3);
        assert_eq!(vm.share.fmem_floor_bytes, 1 << 30);
    }

    #[test]
    fn a_tier_of_two_files() {
        let vm = Vm::parse("a,socket=/s,fmem=/f,smem=/m,smem=/n").unwrap();
        assert_eq!(vm.tiers[1], Tier::Files(vec!["/m".into(), "/n".into()]));
    }

    #[test]
    fn wrong_machines_are_refused() {
        for wrong in [
            "",
            "a",
            "a,socket=/s",
            "a,socket=/s,smem=/m",
            "a,socket=/s,fmem=/f,smem=/f",
            "a,socket=/s,fmem=/f,fmem=/f",
            "a,socket=/s,fmem=/f,fmem=gpa:0x0-0x1000",
            "a,socket=/s,fmem=/f,node3=/g",
            "a,socket=/s,fmem=/f,node9=/g",
            "a,socket=/s,fmem=",
            "a,socket=/s,fmem=gpa:0x2000-0x1000",
            "a,socket=/s,fmem=gpa:1-2",
            "a,socket=/s,fmem=/f,weight=0",
            "a,socket=/s,fmem=/f,colour=red",
            "a,socket=/s,fmem=/f,fmem-floor=2G,fmem-ceiling=1G",
            "../a,socket=/s,fmem=/f",
            "a b,socket=/s,fmem=/f",
        ] {
            assert!(Vm::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fleet_has_distinct_names_and_sockets() {
        let vm = |text| Vm::parse(text).unwrap();
        let a = vm("a,socket=/s,fmem=/f");
        assert!(check_fleet(&[a.clone(), vm("b,socket=/t,fmem=/f")]).is_ok());
        assert!(check_fleet(&[a.clone(), vm("a,socket=/t,fmem=/f")]).is_err());
        assert!(check_fleet(&[a, vm("b,socket=/s,fmem=/f")]).is_err());
    }
}
