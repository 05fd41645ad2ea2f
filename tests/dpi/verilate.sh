#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A testbench in SystemVerilog, by Verilator: a right unit agrees with the oracle on every
# vector, one with a wrong table does not, and the first difference is shown step by step.
#   verilate.sh SOURCES NG_DPI.SV LIBNARROWGAUGE_DPI.SO
set -u
sources=$1
package=$(realpath "$2")
library=$(realpath "$3")
command -v verilator >/dev/null 2>&1 || { echo "skipped: no verilator"; exit 77; }
if nm -D "$library" 2>/dev/null | grep -qE ' U __(asan|ubsan|tsan|msan)_'; then
    echo "skipped: built with a sanitizer"
    exit 77
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/ng-dpi.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    failed=$((failed + 1))
}

# run NAME OPTIONS...: builds and runs; what it prints is in NAME.txt.
run() {
    name=$1
    shift
    if ! verilator --binary --timing -Wall -Wno-fatal --top-module tb --Mdir "$work/$name" "$@" \
        "$package" "$sources/mxfp4_dot.sv" "$sources/tb.sv" \
        -LDFLAGS "$library -Wl,-rpath,$(dirname "$library")" >"$work/$name.log" 2>&1; then
        tail -20 "$work/$name.log"
        fail "verilator $name"
        return
    fi
    "$work/$name/Vtb" >"$work/$name.txt" 2>&1 || fail "the testbench $name ends with $?"
}
run right
run wrong +define+FAULT
grep -h "FAIL" "$work"/*.txt
line=$(grep '^tb:' "$work/right.txt")
[ "$line" = "tb: 10000 vectors, 0 differ, 0 of the package failed" ] || fail "the right unit: $line"
line=$(grep '^tb:' "$work/wrong.txt")
differ=$(echo "$line" | sed -n 's/.* \([0-9]*\) differ, 0 of the package failed$/\1/p')
[ "${differ:-0}" -gt 9000 ] || fail "the wrong unit: $line"
grep -q '^  chain 0 of k 0 to 31' "$work/wrong.txt" || fail "no step is shown: $(head -5 "$work/wrong.txt")"
echo "dpi-verilator: $(verilator --version | cut -d' ' -f1,2), wrong unit: $differ of 10000 differ, $failed failed"
[ $failed -eq 0 ]
