// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program; all of it is the library, so that it can be fuzzed.

use std::process::ExitCode;

fn main() -> ExitCode {
    demeterd::main()
}
