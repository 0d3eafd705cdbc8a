// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What published managers decide: the C sources of `core/peers/`, which their guest modules
//! (`guest/peers/`) include as well. What is meant by each is said in
//! `core/include/demeter/peers/`.

pub mod hemem;
mod hemem_sys;
#[cfg(test)]
mod layout;
pub mod memtis;
pub mod nimble;
