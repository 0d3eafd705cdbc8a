// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of the guest that more than one manager writes, and what is written there.

/// Which memory is made of huge pages.
pub const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Which of Linux's two page lists is in use.
pub const LRU_GEN: &str = "/sys/kernel/mm/lru_gen/enabled";

/// What is written there: MGLRU is the default of Debian's kernels since 6.12; the
/// active and inactive lists are what published systems were measured with.
pub fn lru_word(value: &str) -> &'static str {
    if value == "lists" { "n" } else { "y" }
}

/// Where the per-run archive puts a module of this name.
pub fn module_path(name: &str) -> String {
    format!("/demeter/modules/{name}")
}

/// Watermarks follow the size of the whole node, whose kernel's part and ballast no
/// program can have: what is said of FMEM is written as the same share of the node.
/// What is no number is written as it is, for the kernel to refuse.
pub fn of_fmem(value: &str, fmem_bytes: u64, node_bytes: u64) -> String {
    value.parse::<u64>().map_or(value.to_owned(), |factor| {
        let scaled = u128::from(factor) * u128::from(fmem_bytes) / u128::from(node_bytes.max(1));
        scaled.max(1).to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_fmem_is_one_of_the_node() {
        assert_eq!(of_fmem("400", 64 << 20, 256 << 20), "100");
        assert_eq!(of_fmem("1", 1, 1 << 40), "1");
        assert_eq!(of_fmem("x", 1, 1), "x");
        assert_eq!(of_fmem("7", 3, 0), "21");
    }
}
