// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which virtual machines there are, and which of their memory is which tier.
//!
//! A machine is written in the same words everywhere: as a table of the
//! configuration file, as JSON to the control interface, and as `KEY=VALUE` on the
//! command line.
//!
//! The tier of memory is told, as the file that the machine's node lies in or as
//! guest physical addresses, and checked against what the monitor hands over.
//! Nothing is guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use demeter_balloon::is_name;
use demeter_balloon::view::tier_name;
use demeter_size::SizeError;
use serde::{Deserialize, Deserializer, Serialize};

/// What is wrong with a description.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No file and no addresses.
    #[error("a tier needs a file or gpa:BEGIN-END")]
    EmptyTier,
    /// Not `BEGIN-END`.
    #[error("'{0}' is not BEGIN-END")]
    Range(String),
    /// Not a number.
    #[error("'{0}' is not an address; write for example 0x40000000")]
    Address(String),
    /// Nothing in it, or parts of pages.
    #[error("'{0}' is empty or not made of 4 KiB pages")]
    Extent(String),
    /// Files and addresses, or addresses twice.
    #[error("{0} is given twice")]
    TierTwice(String),
    /// Not `KEY=VALUE`.
    #[error("'{0}' is not KEY=VALUE")]
    Word(String),
    /// A key or value that does not exist.
    #[error("{0}")]
    Key(#[from] serde_json::Error),
    /// Not a name.
    #[error(
        "'{0}' cannot name a machine: 1 to 64 letters, digits, '-', '_' and '.', \
         no '.' first"
    )]
    Name(String),
    /// Nowhere to listen.
    #[error("machine '{0}' has no socket")]
    NoSocket(String),
    /// Not all tiers from the first on.
    #[error("machine '{0}' needs fmem=, then smem=, then node2= and node3=, without a gap")]
    Tiers(String),
    /// One file for two.
    #[error("machine '{0}' names a file twice")]
    FileTwice(String),
    /// An impossible entitlement.
    #[error("machine '{0}' has fmem-ceiling below fmem-floor")]
    Ceiling(String),
    /// Out of range.
    #[error("weight {0} is not 1 to 10000")]
    Weight(u32),
    /// Not in the file.
    #[error("no class '{0}' in the file")]
    Class(String),
    /// Two of one name.
    #[error("two machines are named '{0}'")]
    NameTwice(String),
    /// Two at one socket.
    #[error("machine '{0}' has another's socket")]
    SocketTwice(String),
}

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
    fn parse(text: &str) -> Result<Self, SpecError> {
        let Some(ranges) = text.strip_prefix("gpa:") else {
            if text.is_empty() {
                return Err(SpecError::EmptyTier);
            }
            return Ok(Self::Files(vec![text.into()]));
        };
        let mut list = Vec::new();
        for range in ranges.split('+') {
            let (begin, end) =
                (range.split_once('-')).ok_or_else(|| SpecError::Range(range.to_owned()))?;
            let (begin, end) = (address(begin)?, address(end)?);
            if begin >= end || begin % 4096 != 0 || end % 4096 != 0 {
                return Err(SpecError::Extent(range.to_owned()));
            }
            list.push((begin, end));
        }
        Ok(Self::Addresses(list))
    }

    fn of(node: usize, words: &Words) -> Result<Self, SpecError> {
        let mut whole: Option<Self> = None;
        for word in words.as_slice() {
            whole = Some(match (whole, Self::parse(word)?) {
                (None, first) => first,
                (Some(Self::Files(mut files)), Self::Files(more)) => {
                    files.extend(more);
                    Self::Files(files)
                }
                _ => return Err(SpecError::TierTwice(tier_name(node as u16))),
            });
        }
        whole.ok_or(SpecError::EmptyTier)
    }
}

/// A number in decimal or with 0x.
fn address(text: &str) -> Result<u64, SpecError> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| SpecError::Address(text.to_owned()))
}

/// One word or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "text or a list of texts")]
pub enum Words {
    /// Only one.
    One(String),
    /// A list.
    Many(Vec<String>),
}

impl Words {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }
}

/// A number, or text that says one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a size such as 512M or a number")]
enum Number {
    Plain(u64),
    Text(String),
}

impl Number {
    fn bytes(self) -> Result<u64, SizeError> {
        match self {
            Self::Plain(bytes) => Ok(bytes),
            Self::Text(text) => demeter_size::parse(&text),
        }
    }
}

/// Bytes of `"512M"` or of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        number.bytes().map(Self).map_err(serde::de::Error::custom)
    }
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = match Number::deserialize(deserializer)? {
        Number::Plain(number) => u32::try_from(number).ok(),
        Number::Text(text) => text.parse().ok(),
    };
    let wrong = || serde::de::Error::custom("a count that is not a small whole number");
    number.map(Some).ok_or_else(wrong)
}

/// What is written: `null` is no value of any key, so it is refused, not taken for a key left out.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What a machine is entitled to, as it is written; a class has the same keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Entitlement {
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem_floor: Option<Size>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem_ceiling: Option<Size>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem_size: Option<Size>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    memory: Option<Size>,
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    vcpus: Option<u32>,
}

/// A machine as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Description {
    /// In all interfaces.
    pub name: String,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    qmp: Option<PathBuf>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem: Option<Words>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    smem: Option<Words>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    node2: Option<Words>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    node3: Option<Words>,
    // As in Entitlement: serde cannot both flatten and refuse unknown keys.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem_floor: Option<Size>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem_ceiling: Option<Size>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fmem_size: Option<Size>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    memory: Option<Size>,
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    vcpus: Option<u32>,
}

/// What a guest is entitled to; what is not said is decided by the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
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
    /// Its processors, which bound what it can have sampled.
    pub vcpus: Option<u32>,
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
    /// Where its monitor takes commands.
    pub qmp: Option<PathBuf>,
}

/// Where the monitor comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Socket {
    /// We listen there.
    Path(PathBuf),
    /// A socket that listens, inherited.
    Descriptor(i32),
}

impl Description {
    /// What can be shown of one whose class is not configured any more.
    pub fn without_class(self) -> Self {
        Self {
            class: None,
            ..self
        }
    }

    /// `NAME,socket=PATH,fmem=FILE[,smem=FILE][,KEY=VALUE…]`.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default().to_owned();
        let pairs = words
            .map(|word| (word.split_once('=')).ok_or_else(|| SpecError::Word(word.to_owned())))
            .collect::<Result<Vec<_>, _>>()?;
        Self::from_pairs(name, &pairs)
    }

    /// From keys and values; a key that comes again makes a list.
    pub fn from_pairs(name: String, pairs: &[(&str, &str)]) -> Result<Self, SpecError> {
        use serde_json::{Map, Value};
        let mut table = Map::new();
        for &(key, value) in pairs {
            let value = Value::from(value);
            match table.get_mut(key) {
                None => {
                    table.insert(key.to_owned(), value);
                }
                Some(Value::Array(values)) => values.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
            }
        }
        table.insert("name".to_owned(), name.into());
        Ok(serde_json::from_value(Value::Object(table))?)
    }

    /// All is there and fits.
    pub fn finish(self, classes: &BTreeMap<String, Entitlement>) -> Result<Vm, SpecError> {
        let socket = self.socket.clone().map(Socket::Path);
        self.finish_at(socket, classes)
    }

    /// The same with a socket that has no path.
    pub fn finish_at(
        self,
        socket: Option<Socket>,
        classes: &BTreeMap<String, Entitlement>,
    ) -> Result<Vm, SpecError> {
        let name = self.name;
        if !is_name(&name) {
            return Err(SpecError::Name(name));
        }
        let Some(socket) = socket else {
            return Err(SpecError::NoSocket(name));
        };
        let nodes = [self.fmem, self.smem, self.node2, self.node3];
        let count = nodes.iter().flatten().count();
        let tiers = (nodes.iter().enumerate())
            .map_while(|(node, words)| Some(Tier::of(node, words.as_ref()?)))
            .collect::<Result<Vec<_>, _>>()?;
        if tiers.is_empty() || tiers.len() != count {
            return Err(SpecError::Tiers(name));
        }
        let mut distinct = BTreeSet::new();
        for tier in &tiers {
            if let Tier::Files(files) = tier
                && !files.iter().all(|file| distinct.insert(file))
            {
                return Err(SpecError::FileTwice(name));
            }
        }
        let class = match &self.class {
            // Machines of the control interface may name a class for people only.
            Some(class) => {
                (classes.get(class).cloned()).ok_or_else(|| SpecError::Class(class.clone()))?
            }
            None => Entitlement::default(),
        };
        let bytes = |own: Option<Size>, class: Option<Size>| own.or(class).map(|size| size.0);
        let share = Share {
            weight: self.weight.or(class.weight).unwrap_or(100),
            fmem_floor_bytes: bytes(self.fmem_floor, class.fmem_floor).unwrap_or(0),
            fmem_ceiling_bytes: bytes(self.fmem_ceiling, class.fmem_ceiling),
            fmem_size_bytes: bytes(self.fmem_size, class.fmem_size),
            memory_bytes: bytes(self.memory, class.memory),
            vcpus: self.vcpus.or(class.vcpus),
        };
        if !(1..=10_000).contains(&share.weight) {
            return Err(SpecError::Weight(share.weight));
        }
        if (share.fmem_ceiling_bytes).is_some_and(|ceiling| ceiling < share.fmem_floor_bytes) {
            return Err(SpecError::Ceiling(name));
        }
        Ok(Vm {
            name,
            socket,
            tiers,
            share,
            qmp: self.qmp,
        })
    }
}

/// No two machines of one name or one socket.
pub fn check_fleet<'a>(vms: impl IntoIterator<Item = &'a Vm>) -> Result<(), SpecError> {
    let mut names = BTreeSet::new();
    let mut sockets = BTreeSet::new();
    for vm in vms {
        if !names.insert(&vm.name) {
            return Err(SpecError::NameTwice(vm.name.clone()));
        }
        if !sockets.insert(format!("{:?}", vm.socket)) {
            return Err(SpecError::SocketTwice(vm.name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vm, SpecError> {
        Description::parse(text)?.finish(&BTreeMap::new())
    }

    #[test]
    fn a_machine_in_a_line() {
        let vm = parse(
            "a,socket=/s,fmem=/f,smem=gpa:0x1000-0x2000+0x4000-0x8000,weight=3,fmem-floor=1.5G",
        )
        .unwrap();
        assert_eq!(vm.name, "a");
        assert_eq!(vm.tiers[0], Tier::Files(vec!["/f".into()]));
        assert_eq!(
            vm.tiers[1],
            Tier::Addresses(vec![(0x1000, 0x2000), (0x4000, 0x8000)])
        );
        assert_eq!(vm.share.weight, 3);
        assert_eq!(vm.share.fmem_floor_bytes, 3 << 29);
    }

    #[test]
    fn null_is_no_value() {
        for key in [
            "socket",
            "qmp",
            "class",
            "fmem",
            "smem",
            "node2",
            "node3",
            "weight",
            "fmem-floor",
            "fmem-ceiling",
            "fmem-size",
            "memory",
            "vcpus",
        ] {
            let text = format!(r#"{{"name": "a", "{key}": null}}"#);
            assert!(serde_json::from_str::<Description>(&text).is_err(), "{key}");
        }
        assert!(serde_json::from_str::<Entitlement>(r#"{"memory": null}"#).is_err());
        assert!(serde_json::from_str::<Description>(r#"{"name": "a"}"#).is_ok());
    }

    #[test]
    fn what_is_no_name_names_no_machine() {
        let named = |name: &str| parse(&format!("{name},socket=/s,fmem=/f"));
        assert!(named(&"x".repeat(64)).is_ok());
        let longer = "x".repeat(65);
        for name in ["", "..", ".hidden", "a/b", "a b", &longer] {
            let error = named(name).unwrap_err();
            assert!(matches!(error, SpecError::Name(_)), "{name}: {error}");
        }
    }

    #[test]
    fn a_tier_of_two_files() {
        let vm = parse("a,socket=/s,fmem=/f,smem=/m,smem=/n").unwrap();
        assert_eq!(vm.tiers[1], Tier::Files(vec!["/m".into(), "/n".into()]));
    }

    #[test]
    fn json_says_the_same_and_comes_back() {
        let json = r#"{"name": "a", "socket": "/s", "fmem": "/f", "smem": ["/m", "/n"],
            "weight": 3, "fmem-floor": "1G", "memory": 4294967296}"#;
        let description: Description = serde_json::from_str(json).unwrap();
        let line = "a,socket=/s,fmem=/f,smem=/m,smem=/n,weight=3,fmem-floor=1G,memory=4G";
        let vm = description.clone().finish(&BTreeMap::new()).unwrap();
        assert_eq!(vm, parse(line).unwrap());
        let text = serde_json::to_string(&description).unwrap();
        let again: Description = serde_json::from_str(&text).unwrap();
        assert_eq!(again, description);
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
            "a,socket=/s,fmem=gpa:0xg-0x1000",
            "a,socket=/s,fmem=/f,weight=0",
            "a,socket=/s,fmem=/f,weight=many",
            "a,socket=/s,socket=/t,fmem=/f",
            "a,socket=/s,fmem=/f,colour=red",
            "a,socket=/s,fmem=/f,class=tin",
            "a,socket=/s,fmem=/f,fmem-floor=2X",
            "a,socket=/s,fmem=/f,fmem-floor=2G,fmem-ceiling=1G",
            "../a,socket=/s,fmem=/f",
            "a b,socket=/s,fmem=/f",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let error = parse("a,socket=/s,fmem=/f,colour=red").unwrap_err();
        assert!(error.to_string().contains("fmem-floor"), "{error}");
    }

    #[test]
    fn a_fleet_has_distinct_names_and_sockets() {
        let vm = |text| parse(text).unwrap();
        let a = vm("a,socket=/s,fmem=/f");
        assert!(check_fleet(&[a.clone(), vm("b,socket=/t,fmem=/f")]).is_ok());
        assert!(check_fleet(&[a.clone(), vm("a,socket=/t,fmem=/f")]).is_err());
        assert!(check_fleet(&[a, vm("b,socket=/s,fmem=/f")]).is_err());
    }
}
