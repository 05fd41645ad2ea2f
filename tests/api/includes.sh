#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Who may include whom (docs/architecture.md), over #include lines; no floating point in the
# reference; no notes to self.
#   includes.sh SOURCE_ROOT
set -u
root=${1:-$(cd "$(dirname "$0")/../.." && pwd)}
cd "$root" || exit 1
failed=0
files=0
fail() {
    echo "FAIL: $*"
    failed=$((failed + 1))
}

# only FILE... -- PATTERN...: each quoted include of FILE matches a pattern (shell glob).
only() {
    list=
    while [ "$1" != "--" ]; do
        list="$list $1"
        shift
    done
    shift
    for file in $list; do
        [ -f "$file" ] || continue
        files=$((files + 1))
        for inc in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$file"); do
            ok=no
            for pattern in "$@"; do
                # shellcheck disable=SC2254
                case $inc in $pattern) ok=yes ;; esac
            done
            [ $ok = yes ] || fail "$file may not include \"$inc\""
        done
    done
}

own() { # the headers of a folder, by name
    for h in "$1"/*.h; do
        [ -f "$h" ] && basename "$h"
    done
}

# The installed headers know only each other.
only include/ng/*.h include/ng/*.def -- 'ng/*'
# Exact arithmetic knows the public words only.
# shellcheck disable=SC2046
only src/num/*.c src/num/*.h -- 'ng/*' $(own src/num)
# The reference: exact arithmetic and the kernel contract; internal.h for places in tensors.
# shellcheck disable=SC2046
only src/ref/*.c src/ref/*.h -- 'ng/*' '../num/*.h' '../../kernels/kernel.h' '../internal.h' \
    $(own src/ref)
# The contract, and what all ISAs share.
# avx512.h and amx.h are the emulation, for intrin.h.
# shellcheck disable=SC2046
only kernels/*.h -- 'ng/*' 'isa.def' 'avx512.h' 'amx.h' $(own kernels)
# A kernel: the contract and what is shared, its own folder; never src, never another ISA.
for isa in kernels/*/; do
    isa=${isa%/}
    shared=
    for h in $(own kernels); do
        shared="$shared ../$h"
    done
    # shellcheck disable=SC2046,SC2086
    only "$isa"/*.c "$isa"/*.h -- 'ng/*' $shared $(own "$isa")
done
# The tool and the bindings know only the public headers and themselves.
# shellcheck disable=SC2046
only src/cli/*.c src/cli/*.h -- 'ng/*' '*.inc' $(own src/cli)
for dir in src/bindings/*/; do
    dir=${dir%/}
    # shellcheck disable=SC2046
    only "$dir"/*.c "$dir"/*.h -- 'ng/*' $(own "$dir")
done

# Code without its comments and strings: awk, so that it needs no compiler.
code_of() {
    awk '
        { line = $0 "\n"; n = length(line); out = ""
          for (i = 1; i <= n; i++) {
            two = substr(line, i, 2); c = substr(line, i, 1)
            if (inside) { if (two == "*/") { inside = 0; i++ } ; continue }
            if (quote) { if (c == "\\") { i++ } else if (c == quote) { quote = "" } ; continue }
            if (two == "/*") { inside = 1; i++; continue }
            if (two == "//") break
            if (c == "\"" || c == "\x27") { quote = c; continue }
            out = out c
          }
          quote = ""
          gsub(/\n/, "", out)
          print out
        }' "$1"
}
for file in src/num/*.[ch] src/ref/*.[ch]; do
    hit=$(code_of "$file" | grep -nwE 'float|double|_Float[0-9]+|long double|fma|fmaf|ldexp|frexp' |
        head -1)
    [ -z "$hit" ] || fail "$file:$hit: floating point in the reference"
    hit=$(code_of "$file" | grep -nE '(^|[^A-Za-z0-9_.])([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+[eE][-+]?[0-9]+)[fFlL]?([^A-Za-z0-9_.]|$)' |
        head -1)
    [ -z "$hit" ] || fail "$file:$hit: a floating-point constant in the reference"
    hit=$(grep -nE '# *include *<(math|fenv|complex|tgmath|immintrin)\.h>' "$file" | head -1)
    [ -z "$hit" ] || fail "$file:$hit"
done

# TODO(issue number) or nothing.
for file in $(find include src kernels tests bench docs -type f \
    \( -name '*.[ch]' -o -name '*.cc' -o -name '*.def' -o -name '*.py' -o -name '*.build' \
    -o -name '*.md' \) 2>/dev/null); do
    hit=$(grep -nwE 'TODO|FIXME|XXX' "$file" | grep -vE 'TODO\([0-9]+\)' | head -1)
    [ -z "$hit" ] || fail "$file:$hit"
done
# Every source starts with its licence.
for file in $(find include src kernels tests bench -type f \
    \( -name '*.[ch]' -o -name '*.cc' -o -name '*.def' -o -name '*.py' -o -name '*.sh' \) 2>/dev/null); do
    head -2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
        fail "$file does not begin with its SPDX line"
done

echo "includes: $files files, $failed failed"
[ $failed -eq 0 ]
