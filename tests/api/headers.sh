#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each public header alone, as C11 and as C++17, clean under strict warnings.
#   headers.sh SOURCE_ROOT
set -u
root=${1:-$(cd "$(dirname "$0")/../.." && pwd)}
flags="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only -I$root/include"
work=$(mktemp -d "${TMPDIR:-/tmp}/ng-headers.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

tried=0
failed=0
try() { # COMPILER STANDARD SUFFIX
    command -v "$1" >/dev/null 2>&1 || return 0
    for header in "$root"/include/ng/*.h; do
        name=ng/$(basename "$header")
        # Twice: the guard must hold. Its own function, so that no unit is empty.
        printf '#include "%s"\n#include "%s"\nint alone(void);\nint alone(void)\n{\n    return 0;\n}\n' \
            "$name" "$name" >"$work/alone.$3"
        tried=$((tried + 1))
        # shellcheck disable=SC2086
        if ! "$1" "-std=$2" $flags "$work/alone.$3" 2>"$work/err"; then
            failed=$((failed + 1))
            echo "FAIL: $1 -std=$2: $name"
            head -5 "$work/err"
        fi
    done
}
try gcc c11 c
try gcc c17 c
try g++ c++17 cc
try clang c11 c
try clang c17 c
try clang++ c++17 cc
[ $tried -gt 0 ] || { echo "skipped: no gcc, g++, clang or clang++"; exit 77; }
echo "headers: $tried compilations, $failed failed"
[ $failed -eq 0 ]
