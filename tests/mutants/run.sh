#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Who checks the checker: break a copy of the kernels, one fault at a time, and demand that
# ng-check fails in five of five seeds. Seldom faults are what many rounds are for: what some seeds
# do not see is judged once more in ten times the rounds, and the line says in how many it was.
#
#   run.sh [-k] [NAME-PART]    only the faults with NAME-PART in their names; -k keeps the copy
#   run.sh -n [NAME-PART]      only whether each fault finds the text that it changes: seconds
#   SHARE=2/4 run.sh           only every fourth fault, beginning with the third
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
list=$root/tests/mutants/mutants.txt
seeds="1 2 3 4 5"
rounds=${ROUNDS:-40}
keep=no
dry=no
case ${1:-} in
-k) keep=yes && shift ;;
-n) dry=yes && shift ;;
esac
only=${1:-}
share=${SHARE:-0/1}

say() { printf '%-36s %-22s %s\n' "$1" "$2" "$3"; }

caught=0
applied=0
missed=0
skipped=0
tree=$root # where kernels/ lies
if [ $dry = yes ]; then
    has_isa() { :; }
else
    for tool in meson ninja sed; do
        command -v $tool >/dev/null 2>&1 || { echo "skipped: no $tool"; exit 77; }
    done
    case $(uname -m) in
    x86_64) ;;
    *) echo "skipped: no kernels for $(uname -m)"; exit 77 ;;
    esac
fi

limit= # a fault may hang even the harness; that is no catch, as slow is not wrong
command -v timeout >/dev/null 2>&1 && limit="timeout 600"

work=$(mktemp -d "${TMPDIR:-/tmp}/ng-mutants.XXXXXX") || exit 1
[ $keep = yes ] || trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# The least tree that builds ng-check, built, and what this CPU can run of it.
prepare() {
    tree=$work/tree
    build=$work/build
    mkdir -p "$tree/tests" "$tree/bench"
    cp -r "$root/meson.build" "$root/meson_options.txt" "$root/include" "$root/kernels" "$tree/"
    cp -r "$root/src" "$tree/"
    cp -r "$root/tests/ng_check" "$root/tests/emulate" "$tree/tests/"
    echo "subdir('ng_check')" >"$tree/tests/meson.build"
    : >"$tree/bench/meson.build"
    # Little optimisation: each fault is compiled once and run for seconds.
    if ! meson setup "$build" "$tree" -Dcli=disabled -Dbench=disabled -Doptimization=1 \
        >"$work/setup.log" 2>&1 ||
        ! ninja -C "$build" tests/ng_check/ng-check >"$work/build.log" 2>&1; then
        cat "$work/setup.log" "$work/build.log"
        echo "mutants: the unbroken tree does not build"
        exit 1
    fi
    check=$build/tests/ng_check/ng-check
    if ! "$check" --rounds "$rounds" >"$work/clean.log" 2>&1; then
        tail -5 "$work/clean.log"
        echo "mutants: ng-check fails on the unbroken tree"
        exit 1
    fi
    has_isa() { ! grep -q "^skipped: $1:" "$work/clean.log"; }

    # ISAs that this CPU lacks need not be compiled again and again.
    isas=
    for path in "$tree"/kernels/*/; do
        isa=$(basename "$path")
        if has_isa "$isa"; then isas=$isas${isas:+,}$isa; fi
    done
    meson configure "$build" -Disa="$isas" || exit 1
}
[ $dry = yes ] || prepare

# judge ROUNDS CASES: sets n, the seeds that saw the fault; late, those without an end; first, what was seen.
judge() {
    n=0
    late=0
    first=
    for seed in $seeds; do
        {
            $limit "$check" -x --seed "$seed" --rounds "$1" $2 >"$work/run.$seed" 2>&1
            echo $? >"$work/code.$seed"
        } &
    done
    wait
    for seed in $seeds; do
        code=$(cat "$work/code.$seed")
        case $code in 0 | 2) ;; 124) late=$((late + 1)) ;; *) n=$((n + 1)) ;; esac
        [ -n "$first" ] || first=$(sed -n 's/^FAIL [^ ]*: //p' "$work/run.$seed" | head -n 1)
    done
}

# try NAME FILE SED WHICH-CASES
try() {
    broken=$tree/kernels/$2
    cp "$broken" "$work/whole"
    sed -e "$3" "$work/whole" >"$work/broken"
    if cmp -s "$work/broken" "$work/whole"; then
        say "$1" "$2" "MISSED: the fault does not apply"
        missed=$((missed + 1))
        return
    fi
    if [ $dry = yes ]; then
        applied=$((applied + 1))
        return
    fi
    cp "$work/broken" "$broken"
    own=$rounds
    which=$4
    case $which in *"--rounds "*) own=${which##*--rounds } which=${which%--rounds *} ;; esac
    if ninja -C "$build" tests/ng_check/ng-check >"$work/build.log" 2>&1; then
        judge "$own" "$which"
        seen="in $own rounds"
        if [ $n -lt 5 ] && [ $late -eq 0 ]; then
            before=" ($n/5 in $own)"
            judge $((own * 10)) "$which"
            seen="in $((own * 10)) rounds$before"
        fi
        if [ $n -eq 5 ]; then
            say "$1" "$2" "caught 5/5 $seen: $(echo "$first" | cut -c1-80)"
            caught=$((caught + 1))
        else
            say "$1" "$2" "MISSED: caught $n/5 $seen, $late took too long"
            missed=$((missed + 1))
        fi
    else
        say "$1" "$2" "MISSED: does not compile: $(grep -m1 'error' "$work/build.log" | cut -c1-80)"
        missed=$((missed + 1))
    fi
    cp "$work/whole" "$broken"
}

# The ISA, if it is not every x86-64's with kernels, that a fault's file or cases are of.
isa_of() {
    case $1 in
    *amxbf16*) echo amxbf16 ;;
    *avx512bf16* | dp_*.h* | dp.h*) echo avx512bf16 ;;
    *avx512* | *512.h*) echo avx512 ;;
    esac
}

trim() { printf '%s' "$1" | sed -e 's/^ *//' -e 's/ *$//'; }

number=0
exec 3<"$list"
while IFS= read -r line <&3; do
    case $line in '' | '#'*) continue ;; esac
    name=$(trim "${line%%|*}")
    rest=${line#*|}
    file=$(trim "${rest%%|*}")
    cases=
    case $file in *@*) cases=${file#*@} file=${file%%@*} ;; esac
    fault=$(trim "${rest#*|}")
    case $name in *"$only"*) ;; *) continue ;; esac
    number=$((number + 1))
    [ $((number % ${share#*/})) -eq "${share%/*}" ] || continue
    isa=$(isa_of "$file $cases")
    if [ -n "$isa" ] && ! has_isa "$isa"; then
        say "$name" "$file" "skipped: $isa is not on this CPU"
        skipped=$((skipped + 1))
        continue
    fi
    if [ -f "$tree/kernels/$file" ]; then
        try "$name" "$file" "$fault" "$cases"
        continue
    fi
    for path in "$tree"/kernels/*/"$file"; do
        if [ ! -f "$path" ]; then
            say "$name" "$file" "MISSED: no such file"
            missed=$((missed + 1))
            continue
        fi
        isa=$(basename "$(dirname "$path")")
        if has_isa "$isa"; then
            try "$name" "$isa/$file" "$fault" "--isa $isa $cases"
        else
            say "$name" "$isa/$file" "skipped: not on this CPU"
            skipped=$((skipped + 1))
        fi
    done
done
exec 3<&-

[ $skipped -eq 0 ] || echo "skipped: $skipped"
if [ $dry = yes ]; then
    [ "$number" -gt 0 ] || missed=1 # a list in which nothing was found tells nothing
    echo "mutants: $applied find their text, $missed do not (of $number)"
    [ $missed -eq 0 ]
    exit
fi
echo "mutants: $caught caught, $missed missed (share $share of $number)"
[ $missed -eq 0 ]
