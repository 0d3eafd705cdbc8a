#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: tests/lint.sh LAB_BIN
# Every linter over every file it understands; one line a linter, all run.
set -uo pipefail

cd "$(dirname "$0")/.." || exit 1
lab=${1:?usage: tests/lint.sh LAB_BIN}
passed=0 failed=0

check() {
	local name=$1
	shift
	local output
	if output=$("$@" 2>&1); then
		passed=$((passed + 1))
		echo "ok     $name"
	else
		failed=$((failed + 1))
		echo "FAILED $name"
		echo "$output" | tail -n 60
	fi
}

sources() {
	git ls-files --cached --others --exclude-standard -- "$@"
}

spdx_on_line_one() {
	local missing=0
	while IFS= read -r file; do
		head -n 2 "$file" | grep -q SPDX-License-Identifier && continue
		echo "$file: no SPDX line"
		missing=1
	done < <(sources '*.c' '*.h' '*.rs' '*.py' '*.sh' 'Makefile' '*/Makefile' '*/Kbuild' '*.toml' 'tests/suites/*' 'tests/debug/suites/*')
	return $missing
}

files_under_800_lines() {
	local long
	long=$(sources '*.c' '*.h' '*.rs' '*.py' '*.sh' | xargs wc -l | awk '$1 >= 800 && $2 != "total"')
	echo "$long"
	[ -z "$long" ]
}

# Of sysfs: entries of the peers' tables, each in an entry of its folder; attributes of the
# others, each with a line What:; parameters of modules.
sysfs_files_described() {
	local missing=0 file name folder line
	while IFS=: read -r file name; do
		folder='' line="^What:.*/$name\$"
		case $file in guest/peers/*) line+="|^\t+$name:" folder=${file%/*} ;; esac
		awk -v folder="${folder#guest/peers/frame}" -v line="$line" '
			/^What:/ { here = 0 }
			$0 ~ folder { here = 1 }
			here && $0 ~ line { found = 1 }
			END { exit !found }' docs/abi/* && continue
		echo "$file: $name has no description in docs/abi/"
		missing=1
	done < <(sources 'guest/*.[ch]' ':!guest/tests' |
		xargs grep -oE '"[a-z_0-9]+", &|&[a-z_0-9]+\.attr\b|module_param\(\w+, \w+, 0[0-7]+' |
		sed -E 's/_attr(ibute)?\.attr$|\.attr$|", &$|, .*//; s/:(module_param\(|"|&(param_|tier_|node_)?)/:/')
	return $missing
}

modules_without_circles() {
	local list crates
	list=$(sources 'crates/*/Cargo.toml' | xargs -n 1 dirname) || return 1
	mapfile -t crates <<<"$list"
	PYTHONPATH=lab "$lab/python" -m demeter_lab.circles --known tests/known-circles.toml "${crates[@]}"
}

kernel_sources() {
	sources 'guest/*.[ch]' 'core/*.c' 'core/include/*.h' 'uapi/*.h'
}

checkpatch() {
	local script
	script=$(testbed/checkpatch.sh) || return 1
	# LINUX_VERSION_CODE is what one out-of-tree source for many kernels needs;
	# core/ and uapi/ carry their own licences; user-space test code is not kernel code.
	kernel_sources | grep -vE '^(guest/tests/user|core/bench)/' | xargs perl "$script" --no-tree --terse --strict -f \
		--ignore LINUX_VERSION_CODE,SPDX_LICENSE_TAG,FILE_PATH_CHANGES,CONST_STRUCT,PREFER_DEFINED_ATTRIBUTE_MACRO \
		--ignore NEW_TYPEDEFS,PREFER_KERNEL_TYPES,CAMELCASE,COMPLEX_MACRO,MACRO_ARG_REUSE --max-line-length=100
}

# Of one processor each, one after another; beside them, what takes all that it is given.
with_one_processor() {
	local passed=0 failed=0
	check "SPDX on line one" spdx_on_line_one
	check "files under 800 lines" files_under_800_lines
	check "files of sysfs described" sysfs_files_described
	check "no circles among modules" modules_without_circles
	check "rustfmt" cargo fmt --all --check
	check "rustfmt of the fuzzer" cargo fmt --manifest-path fuzz/Cargo.toml --check
	check "clang-format" bash -c "git ls-files 'core/*.[ch]' 'guest/*.[ch]' 'uapi/*.h' | xargs clang-format --dry-run -Werror"
	check "checkpatch" checkpatch
	check "ruff check" "$lab/ruff" check lab
	check "ruff format" "$lab/ruff" format --check lab
	check "shellcheck" bash -c "git ls-files '*.sh' 'tests/suites/*' 'tests/debug/suites/*' '.ci/run' | xargs shellcheck"
	echo "$passed $failed" >"$told/counts"
}
told=$(mktemp -d) || exit
trap 'rm -rf "$told"' EXIT
trap 'trap - INT TERM; rm -rf "$told"; kill 0' INT TERM
with_one_processor >"$told/lines" &
check "lock of the fuzzer" cargo metadata --locked --quiet --format-version 1 --manifest-path fuzz/Cargo.toml
check "clippy" cargo clippy --release --workspace --all-targets -q -- -D warnings
check "kernel W=1 and sparse" testbed/build-modules.sh 6.12 W=1 C=1
wait
cat "$told/lines"
read -r also_passed also_failed 2>/dev/null <"$told/counts" || {
	echo "FAILED linters of one processor: they did not come to their end"
	also_passed=$(grep -c '^ok     ' "$told/lines") also_failed=1
}
passed=$((passed + also_passed))
failed=$((failed + also_failed))
echo "lint: $passed passed, $failed failed"
[ "$failed" = 0 ]
