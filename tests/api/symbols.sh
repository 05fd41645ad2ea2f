#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the library shows and what it wants: exports exactly the names of ng.map; kernels ask
# only for libc's mem* functions and SLEEF's deterministic ones; nothing in it prints, exits, aborts or reads the environment.
#   symbols.sh SOURCE_ROOT BUILD_ROOT
set -u
root=$1
build=$2
command -v nm >/dev/null 2>&1 || { echo "skipped: no nm"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/ng-symbols.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    failed=$((failed + 1))
}

so=$build/src/libnarrowgauge.so
[ -e "$so" ] || { echo "skipped: no shared library in $build"; exit 77; }
if nm -D "$so" | grep -qE ' U __(asan|ubsan|tsan|msan)_'; then
    echo "skipped: built with a sanitizer"
    exit 77
fi

# The global names of the map, against the exported ones.
sed -n '/global:/,/local:/p' "$root/src/ng.map" | sed -n 's/^ *\([a-z0-9_]*\);.*/\1/p' |
    sort >"$work/map"
nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/so"
cmp -s "$work/map" "$work/so" ||
    fail "exports differ from src/ng.map (<: in the map only)
$(diff "$work/map" "$work/so")"
# Every NG_API declaration of the headers has its line in the map, and no other name has.
cat "$root"/include/ng/*.h | tr '\n' ' ' | grep -oE 'NG_API [^;{]*\(' |
    grep -oE 'ng_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u >"$work/api"
cmp -s "$work/map" "$work/api" ||
    fail "src/ng.map differs from the headers' NG_API functions (<: in the map only)
$(diff "$work/map" "$work/api")"

# A kernel library stands alone.
kernels=0
for lib in "$build"/kernels/libng_kernels_*.a; do
    [ -e "$lib" ] || continue
    kernels=$((kernels + 1))
    nm --defined-only "$lib" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$work/has"
    nm -u "$lib" 2>/dev/null | awk '$1 == "U" { print $2 }' | sort -u >"$work/wants"
    bad=$(comm -13 "$work/has" "$work/wants" |
        grep -vxE 'memcpy|memmove|memset|memcmp|_GLOBAL_OFFSET_TABLE_|Sleef_finz_[a-z0-9]+_u(10|35)avx(2|512f)')
    [ -z "$bad" ] || fail "$(basename "$lib") wants $bad"
    bad=$(nm --defined-only "$lib" 2>/dev/null | awk 'NF == 3 && $2 ~ /[TDBRV]/ { print $3 }' | sort -u |
        grep -vE '^ng_(gemm_|cast_|nvfp4_|random_|sparse_|elementary_|attention_|moe_|reduce_|kernels_)')
    [ -z "$bad" ] || fail "$(basename "$lib") defines $bad outside of its names"
    # A writable object would be state that two threads share. (A table of functions stands in
    # .data.rel.ro: written once, by the loader.)
    bad=$(nm --defined-only -f sysv "$lib" 2>/dev/null | tr -d ' ' |
        awk -F'|' '$3 ~ /^[dDbBC]$/ && $7 !~ /^\.data\.rel\.ro/ { print $1 }')
    [ -z "$bad" ] || fail "$(basename "$lib") has writable data: $bad"
done

# No call prints, exits, aborts, or reads the environment.
bad=$(nm -D -u "$so" | awk '{ sub(/@.*/, "", $2); print $2 }' |
    grep -xE '_?_?(abort|_?exit|_Exit|quick_exit|printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|fputc|fwrite|perror|write|getenv|secure_getenv|setlocale|__assert_fail|__printf_chk|__fprintf_chk|assert_fail|raise|signal|longjmp|rand|srand|random|time|clock|strtok|alloca)')
[ -z "$bad" ] || fail "the library calls $bad"
# Nor does it keep state of its own: .data and .bss hold no object (the C runtime's apart).
bad=$(nm --defined-only "$so" 2>/dev/null |
    awk '$2 ~ /^[bB]$/ && $3 !~ /^(completed|__bss_start|_edata|_end|__cpu_model|__cpu_features2)/ { print $3 }')
[ -z "$bad" ] || fail "the library has mutable state: $bad"

echo "symbols: $(wc -l <"$work/map") exports, $kernels kernel libraries, $failed failed"
[ $failed -eq 0 ]
