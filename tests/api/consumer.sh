#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An installed library serves a C and a C++ program that know only pkg-config.
#   consumer.sh SOURCE_ROOT BUILD_ROOT
set -u
root=$1
build=$2
for tool in meson pkg-config cc readelf; do
    command -v $tool >/dev/null 2>&1 || { echo "skipped: no $tool"; exit 77; }
done
if nm -D "$build/src/libnarrowgauge.so" 2>/dev/null | grep -qE ' U __(asan|ubsan|tsan|msan)_'; then
    echo "skipped: built with a sanitizer"
    exit 77
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/ng-consumer.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    failed=$((failed + 1))
}

# --no-rebuild: a test must not build; what meson test built is installed.
if ! DESTDIR=$work/root meson install -C "$build" --no-rebuild --quiet >"$work/log" 2>&1; then
    cat "$work/log"
    fail "meson install"
    exit 1
fi
pc=$(find "$work/root" -name narrowgauge.pc | head -1)
so=$(find "$work/root" -name 'libnarrowgauge.so' | head -1)
archive=$(find "$work/root" -name 'libnarrowgauge.a' | head -1)
headers=$(find "$work/root" -type d -path '*/include/ng' | head -1)
[ -n "$pc" ] && [ -n "$so" ] && [ -n "$archive" ] && [ -n "$headers" ] || {
    find "$work/root" -type f
    fail "not installed: pkg-config file '$pc', .so '$so', .a '$archive', headers '$headers'"
    exit 1
}

for file in "$root"/include/ng/*; do
    cmp -s "$file" "$headers/$(basename "$file")" || fail "$(basename "$file") is not installed"
done
[ "$(ls "$headers" | wc -l)" -eq "$(ls "$root/include/ng" | wc -l)" ] ||
    fail "headers installed that are not in include/ng"

version() { sed -n "s/^#define NG_VERSION_$1 //p" "$root/include/ng/version.h"; }
major=$(version MAJOR)
whole=$major.$(version MINOR).$(version PATCH)
soname=$(readelf -d "$so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
[ "$soname" = "libnarrowgauge.so.$major" ] || fail "soname is $soname"
[ -e "$(dirname "$so")/libnarrowgauge.so.$major" ] || fail "no link libnarrowgauge.so.$major"

prefix=$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$pc")
pkgconf() { pkg-config --define-variable=prefix="$work/root$prefix" "$@" narrowgauge; }
[ "$(pkgconf --modversion)" = "$whole" ] || fail "pkg-config says $(pkgconf --modversion), not $whole"

cat >"$work/use.c" <<'END'
#include <ng/ng.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    /* 1.5 * 2 + 0.25 * 4 = 4 in bf16 operands */
    const uint16_t a[] = { 0x3FC0, 0x3E80 }, b[] = { 0x4000, 0x4080 };
    const int64_t da[] = { 1, 2 }, db[] = { 2, 1 }, dd[] = { 1, 1 };
    uint32_t d = 0;
    ng_tensor ta, tb, td;
    ng_ctx *ctx = NULL;
    ng_gemm_op op;
    ng_pool *pool = NULL;
    ng_executor executor;
    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.profile = ng_profile_find("trn2");
    if (strcmp(ng_version(), WANTED) != 0 || ng_ctx_create(NULL, &ctx) != NG_OK)
        return 1;
    if (ng_tensor_init(&ta, NG_BF16, (void *)(uintptr_t)a, 2, da) != NG_OK ||
        ng_tensor_init(&tb, NG_BF16, (void *)(uintptr_t)b, 2, db) != NG_OK ||
        ng_tensor_init(&td, NG_F32, &d, 2, dd) != NG_OK ||
        ng_gemm(ctx, &op, &ta, &tb, NULL, &td) != NG_OK)
        return 2;
    ng_ctx_destroy(ctx);
    if (ng_pool_create(2, &pool, &executor) == NG_OK)
        ng_pool_destroy(pool);
    return d == 0x40800000u ? 0 : 3;
}
END
cp "$work/use.c" "$work/use.cc"

# try COMPILER SOURCE OUTPUT FLAGS...
try() {
    compiler=$1
    source=$2
    output=$work/$3
    shift 3
    if ! command -v "$compiler" >/dev/null 2>&1; then
        echo "skipped: no $compiler"
        return
    fi
    if ! "$compiler" "-DWANTED=\"$whole\"" -o "$output" "$work/$source" "$@" 2>"$work/err"; then
        fail "$compiler $source $*: $(head -3 "$work/err")"
        return
    fi
    LD_LIBRARY_PATH=$(dirname "$so") "$output" || fail "$output ends with $?"
}
# The compiler options of pkg-config are words.
# shellcheck disable=SC2046
{
    try cc use.c c-shared $(pkgconf --cflags --libs)
    try c++ use.cc cc-shared $(pkgconf --cflags --libs)
    # The static library: its own archive, not the .so that lies beside it.
    libs=$(pkgconf --libs --static | sed "s#-lnarrowgauge#$archive#")
    try cc use.c c-static $(pkgconf --cflags) $libs
    try c++ use.cc cc-static $(pkgconf --cflags) $libs
}
for binary in c-static cc-static; do
    [ ! -x "$work/$binary" ] || ! readelf -d "$work/$binary" | grep -q libnarrowgauge ||
        fail "$binary still wants the shared library"
done
[ ! -x "$work/c-shared" ] || readelf -d "$work/c-shared" | grep -q "$soname" ||
    fail "c-shared does not want $soname"

# SystemVerilog's: the package where pkg-config says, and a shared object that wants nothing of ours.
dpi=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$work/root$prefix" --variable=sv narrowgauge-dpi)
grep -q '^package ng_dpi;' "$dpi" 2>/dev/null || fail "no package at '$dpi'"
dpi=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$work/root$prefix" --variable=library narrowgauge-dpi)
[ -e "$dpi" ] || fail "no library at '$dpi'"
! readelf -d "$dpi" | grep NEEDED | grep -q narrowgauge || fail "$dpi wants another library of ours"
nm -D --defined-only "$dpi" | awk '$2 == "T" { print $3 }' | grep -v '^ng_dpi_' &&
    fail "$dpi shows other names than ng_dpi_*"

echo "consumer: $(ls "$headers" | wc -l) headers, soname $soname, $failed failed"
[ $failed -eq 0 ]
