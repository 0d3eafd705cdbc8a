#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The part of layout.sh, which reads it, for a guest without a PMU: shared memory, as that
# of databases, is sampled by page faults, of one process and of several.

sysfs=${sysfs:?layout.sh says where it is}

# Touches keep to one percent of the time: some 200 a second here, once what was saved up
# before the first program is spent. So it takes most of a second to find what is hot, and
# these run for three.
gups() {
	/demeter/workloads gups --footprint 96M --hot 8M --updates 24000000 "$@"
}

comes "anonymous, by touch" gups
comes "shared memory, by touch" gups --memory shared
comes "shared memory that three map, by touch" gups --memory shared --sharers 2
comes "shared memory that two use, by touch" in_model /tmp/layouts pool 24000000
comes "shared memory mapped twice, by touch" in_model /tmp/layouts views last 12000000

# What takes pages away while they are armed does no harm, and the marks are missed.
lost=$(get touch/lost_marks)
touched=$(get touch/touched)
measure in_model /tmp/layouts holes 60
lost=$(($(get touch/lost_marks) - lost))
touched=$(($(get touch/touched) - touched))
[ $touched -gt 100 ] || fail "holes: only $touched touches"
[ $lost -gt 0 ] || fail "holes: no mark was lost"
echo "ok - holes in shared memory: $touched touches, $lost marks lost"
passed=$((passed + 1))

log_is_clean
echo 0 >"$sysfs/enabled"
armed=$(get touch/armed)
ended=$(($(get touch/touched) + $(get touch/retired) + $(get touch/lost_marks)))
[ "$armed" = "$ended" ] || fail "$armed pages were armed, $ended accounted for"
rmmod demeter || fail "rmmod"
left_isolated
echo "layout without a PMU: $passed passed, 0 failed"
