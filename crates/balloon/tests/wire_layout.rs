// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Rust side of the wire is what the C header says: sizes, offsets and
//! constants, as a C compiler sees them.

use std::process::Command;

use demeter_balloon::wire::{self, Ack, Config, Report, Request, Status};

/// Prints `NAME VALUE` for everything that is compared below.
const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <virtio_demeter.h>
#define SIZE(s) printf("sizeof." #s " %zu\n", sizeof(struct virtio_demeter_##s))
#define AT(s, f) printf(#s "." #f " %zu\n", offsetof(struct virtio_demeter_##s, f))
#define IS(c) printf(#c " %llu\n", (unsigned long long)VIRTIO_DEMETER_##c)
int main(void)
{
	SIZE(config); SIZE(request); SIZE(report); SIZE(range); SIZE(ack);
	SIZE(statistics); SIZE(node_statistics);
	AT(config, version); AT(config, nr_nodes); AT(config, instance);
	AT(config, statistics_interval_ms); AT(config, max_ranges);
	AT(request, op); AT(request, node); AT(request, target_pages);
	AT(report, op); AT(report, node); AT(report, flags); AT(report, nr_ranges);
	AT(report, result); AT(report, current_pages);
	AT(range, nr_pages); AT(ack, bad_range);
	AT(statistics, event); AT(statistics, nr_nodes); AT(statistics, valid);
	AT(statistics, fmem_samples); AT(statistics, hot_wanted_pages);
	AT(statistics, psi_memory_some_us); AT(statistics, refaults);
	AT(node_statistics, hot_pages); AT(node_statistics, demoted_pages);
	IS(ID); IS(MAGIC); IS(VERSION); IS(PAGE_SHIFT); IS(MAX_NODES);
	IS(VQ_REQUEST); IS(VQ_STATISTICS); IS(VQ_REPORT);
	IS(RESIZE); IS(STATISTICS); IS(HELLO); IS(INFLATED); IS(DEFLATE); IS(DONE);
	IS(HELLO_RESYNC); IS(INFLATED_RESYNC); IS(VALID_TMM); IS(VALID_PSI);
	IS(REACHED); IS(FLOOR); IS(SUPERSEDED); IS(OOM); IS(REFUSED);
	IS(OK); IS(E_MALFORMED); IS(E_NODE); IS(E_RANGE); IS(E_TIER); IS(E_STATE);
	IS(E_BUDGET); IS(E_HOST); IS(E_DISABLED); IS(E_HELLO);
	return 0;
}
"#;

fn compiled() -> Vec<(String, u64)> {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    let program = directory.path().join("layout");
    std::fs::write(&source, PROGRAM).unwrap();
    let uapi = concat!(env!("CARGO_MANIFEST_DIR"), "/../../uapi");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler)
        .arg(format!("-I{uapi}"))
        .args(["-Wall", "-Werror", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    let output = Command::new(program).output().unwrap().stdout;
    String::from_utf8(output)
        .unwrap()
        .lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Where the only byte that is not zero lies.
fn offset(bytes: &[u8]) -> u64 {
    let set: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
    assert_eq!(set.len(), 1, "{bytes:?}");
    set[0] as u64
}

fn config(change: impl Fn(&mut Config)) -> u64 {
    let mut config = Config {
        nr_nodes: 0,
        instance: 0,
        statistics_interval_ms: 0,
        max_ranges: 0,
    };
    let plain = config.to_bytes();
    change(&mut config);
    let mut bytes = config.to_bytes();
    for (byte, plain) in bytes.iter_mut().zip(plain) {
        *byte ^= plain;
    }
    offset(&bytes)
}

fn request(change: impl Fn(&mut Request)) -> u64 {
    let mut request = Request {
        id: 0,
        op: 0,
        node: 0,
        target_pages: 0,
    };
    change(&mut request);
    offset(&request.to_bytes())
}

fn report(change: impl Fn(&mut Report)) -> u64 {
    let mut report = Report::default();
    change(&mut report);
    let bytes = report.message(&[]);
    // message() and from_bytes() must agree, since tests rest on the one and the
    // device on the other.
    assert_eq!(Report::from_bytes(&bytes), Some(report));
    offset(&bytes)
}

/// Offset of a field of statistics, by changing a byte and looking.
fn statistics(nodes: usize, changed: impl Fn(&demeter_balloon::Statistics) -> bool) -> u64 {
    let length = wire::STATISTICS_BYTES + nodes * wire::NODE_STATISTICS_BYTES;
    let pages = vec![1 << 20; nodes];
    (0..length as u64)
        .find(|&at| {
            let mut bytes = vec![0; length];
            bytes[18] = nodes as u8;
            bytes[at as usize] ^= 1;
            demeter_balloon::Statistics::from_bytes(&bytes, &pages).is_ok_and(|s| changed(&s))
        })
        .unwrap()
}

#[test]
fn rust_is_what_c_says() {
    let c = compiled();
    let rust = |name: &str| -> u64 {
        match name {
            "sizeof.config" => wire::CONFIG_BYTES as u64,
            "sizeof.request" => wire::REQUEST_BYTES as u64,
            "sizeof.report" => wire::REPORT_BYTES as u64,
            "sizeof.range" => wire::RANGE_BYTES as u64,
            "sizeof.ack" => wire::ACK_BYTES as u64,
            "sizeof.statistics" => wire::STATISTICS_BYTES as u64,
            "sizeof.node_statistics" => wire::NODE_STATISTICS_BYTES as u64,
            "config.version" => 4,
            "config.nr_nodes" => config(|c| c.nr_nodes = 1),
            "config.instance" => config(|c| c.instance = 1),
            "config.statistics_interval_ms" => config(|c| c.statistics_interval_ms = 1),
            "config.max_ranges" => config(|c| c.max_ranges = 1),
            "request.op" => request(|r| r.op = 1),
            "request.node" => request(|r| r.node = 1),
            "request.target_pages" => request(|r| r.target_pages = 1),
            "report.op" => report(|r| r.op = 1),
            "report.node" => report(|r| r.node = 1),
            "report.flags" => report(|r| r.flags = 1),
            "report.nr_ranges" => 16,
            "report.result" => report(|r| r.result = 1),
            "report.current_pages" => report(|r| r.current_pages = 1),
            "range.nr_pages" => 8,
            "ack.bad_range" => offset(
                &Ack {
                    status: Status::Ok,
                    bad_range: 1,
                }
                .to_bytes(),
            ),
            "statistics.event" => statistics(1, |s| format!("{:?}", s.event) == "Requested"),
            "statistics.nr_nodes" => 18,
            "statistics.valid" => statistics(1, |s| s.has_tmm),
            "statistics.fmem_samples" => statistics(1, |s| s.fmem_samples == 1),
            "statistics.hot_wanted_pages" => statistics(1, |s| s.hot_wanted_pages == 1),
            "statistics.psi_memory_some_us" => statistics(1, |s| s.psi_some_us == 1),
            "statistics.refaults" => statistics(1, |s| s.refaults == 1),
            "node_statistics.hot_pages" => {
                statistics(1, |s| s.nodes[0].hot_pages == 1) - wire::STATISTICS_BYTES as u64
            }
            "node_statistics.demoted_pages" => {
                statistics(1, |s| s.nodes[0].demoted_pages == 1) - wire::STATISTICS_BYTES as u64
            }
            "ID" => wire::DEVICE_ID.into(),
            "MAGIC" => wire::MAGIC.into(),
            "VERSION" => wire::VERSION.into(),
            "PAGE_SHIFT" => wire::PAGE_SHIFT.into(),
            "MAX_NODES" => wire::MAX_NODES as u64,
            "VQ_REQUEST" => wire::QUEUE_REQUEST as u64,
            "VQ_STATISTICS" => wire::QUEUE_STATISTICS as u64,
            "VQ_REPORT" => wire::QUEUE_REPORT as u64,
            "RESIZE" => wire::OP_RESIZE.into(),
            "STATISTICS" => wire::OP_STATISTICS.into(),
            "HELLO" => wire::OP_HELLO.into(),
            "INFLATED" => wire::OP_INFLATED.into(),
            "DEFLATE" => wire::OP_DEFLATE.into(),
            "DONE" => wire::OP_DONE.into(),
            "HELLO_RESYNC" => wire::HELLO_RESYNC.into(),
            "INFLATED_RESYNC" => wire::INFLATED_RESYNC.into(),
            "VALID_TMM" => wire::VALID_TMM.into(),
            "VALID_PSI" => wire::VALID_PSI.into(),
            "REACHED" => wire::Outcome::Reached as u64,
            "FLOOR" => wire::Outcome::Floor as u64,
            "SUPERSEDED" => wire::Outcome::Superseded as u64,
            "OOM" => wire::Outcome::Oom as u64,
            "REFUSED" => wire::Outcome::Refused as u64,
            "OK" => Status::Ok as u64,
            "E_MALFORMED" => Status::Malformed as u64,
            "E_NODE" => Status::Node as u64,
            "E_RANGE" => Status::Range as u64,
            "E_TIER" => Status::Tier as u64,
            "E_STATE" => Status::State as u64,
            "E_BUDGET" => Status::Budget as u64,
            "E_HOST" => Status::Host as u64,
            "E_DISABLED" => Status::Disabled as u64,
            "E_HELLO" => Status::Hello as u64,
            other => panic!("{other} is not compared"),
        }
    };
    assert!(c.len() > 60, "{}", c.len());
    for (name, value) in c {
        assert_eq!(rust(&name), value, "{name}");
    }
}
