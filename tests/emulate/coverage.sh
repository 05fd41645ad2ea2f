#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Is every function of avx512.h put in an intrinsic's place and called by test_emulate.c?
#   coverage.sh FOLDER COMPILER...
set -u
folder=$1
shift
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

"$@" -E -D_GNU_SOURCE -mavx2 -mfma -DNG_EMULATE_AVX512 -I"$folder" "$folder/test_emulate.c" \
    >"$work/all" || exit 1
# The preprocessor's lines `# N "FILE"` tell whose text follows.
part() {
    awk -v end="$1" '/^# [0-9]+ "/ { split($0, f, "\""); on = f[2] ~ end "$" } on' "$work/all" |
        grep -oE '\bng_emu_[a-z0-9_]+' | sort -u
}
part 'avx512[.]h' >"$work/defined"
part 'test_emulate[.]c' >"$work/called"
untested=$(comm -23 "$work/defined" "$work/called")
[ -z "$untested" ] || printf 'FAIL: no row for %s\n' $untested
echo "coverage: $(wc -l <"$work/defined") intrinsics, $(printf '%s' "$untested" | grep -c .) without a row"
[ -s "$work/defined" ] && [ -z "$untested" ]
