#!/usr/bin/env bash
# rdma-core's own Python tests on the software ConnectX, compared with the list in docs/pyverbs.txt.
#
#   scripts/pyverbs.sh GICBENCH [MODULE...]      0 if each test does what the list says, 1 if not, 77 if they can't be had
#   UPDATE=1 scripts/pyverbs.sh GICBENCH         writes the list anew
#
# The tests are rdma-core 44.0's and stay out of this repository: they are taken from a checkout or an unpacked source that
# GICBENCH_RDMA_CORE names, or fetched from Debian or from the project's releases, and checked by their digest. pyverbs itself
# is the system's (python3-pyverbs).
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,9s/^# *//p' "$0" >&2; exit 2; }
gicbench=$(realpath "$1")
shift
list=docs/pyverbs.txt
python=/usr/bin/python3
deadline=120
cant() { echo "rdma-core's tests: $*" >&2; exit 77; }

"$python" -c 'import pyverbs.device' 2>/dev/null || cant "python3-pyverbs isn't installed"
version=$("$python" -c 'import glob; print(*glob.glob("/usr/lib/*/libibverbs.so.1.14.44*"))')
[ -n "$version" ] || cant "libibverbs isn't rdma-core 44's, which the list is of"

digest=875cf1c83a991d35f3fec924caf16de2f99b5e067151aae8547ca281b1c3d824
sum() { (cd "$1/tests" && find . -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1); }
is_right() { [ -d "$1/tests" ] && [ "$(sum "$1")" = "$digest" ]; }

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gicbench/rdma-core-44.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! is_right "$cache"; then
    new=$work/source
    mkdir -p "$new"
    from=${GICBENCH_RDMA_CORE:-}
    if [ -n "$from" ] && git -C "$from" rev-parse --verify --quiet v44.0 >/dev/null; then
        git -C "$from" archive v44.0 tests | tar -x -C "$new"
    elif [ -n "$from" ]; then
        cp -r "$from/tests" "$new/"
    else
        for url in https://deb.debian.org/debian/pool/main/r/rdma-core/rdma-core_44.0.orig.tar.gz \
            https://github.com/linux-rdma/rdma-core/releases/download/v44.0/rdma-core-44.0.tar.gz; do
            if curl -sSfL --max-time 60 -o "$work/source.tar.gz" "$url"; then
                tar -xzf "$work/source.tar.gz" -C "$new" --strip-components=1 --wildcards '*/tests/*.py'
                break
            fi
        done
    fi
    is_right "$new" || cant "their source can't be had, or isn't 44.0's (GICBENCH_RDMA_CORE may name a checkout of rdma-core)"
    rm -rf "$cache"
    mkdir -p "$(dirname "$cache")"
    mv "$new" "$cache"
fi

# Those of other makers' devices have nothing to look at.
modules=("$@")
if [ $# = 0 ]; then
    mapfile -t modules < <(cd "$cache/tests" && ls test_*.py | sed 's/\.py$//' | grep -v '^test_efa')
fi
for layer in infiniband ethernet; do
    gid=$([ $layer = ethernet ] && echo 3 || echo 0)
    for module in "${modules[@]}"; do
        log=$work/log
        : >"$work/lines"
        "$gicbench" nic exec --link-layer $layer -- timeout -k 5 $deadline "$python" scripts/pyverbs_run.py \
            "$cache" "$module" "$work/lines" --dev mlx5_0 --port 1 --gid "$gid" >"$log" 2>&1 ||
            { echo "$layer $module ended with status $?"; tail -n 20 "$log"; }
        sed "s/^/$layer /" "$work/lines" >>"$work/results"
        if grep -q ' fail$' "$work/lines"; then cat "$log"; fi
    done
done
LC_ALL=C sort -u -o "$work/results" "$work/results"
if [ -n "${UPDATE:-}" ]; then
    cp "$work/results" "$list"
    exit 0
fi

"$python" - "$list" "$work/results" "${modules[@]}" <<'PY'
import sys

def read(path):
    return {tuple(line.split()[:2]): line.split()[2] for line in open(path, encoding="utf-8")}

known, found, modules = read(sys.argv[1]), read(sys.argv[2]), sys.argv[3:]
known = {test: outcome for test, outcome in known.items() if test[1].split(".")[1] in modules}
# What a machine lacks (huge pages, a GPU) may be skipped on one and not on another; what passed must pass.
worse = [(test, outcome, found.get(test, "nothing")) for test, outcome in known.items()
         if outcome == "pass" and found.get(test) != "pass"]
worse += [(test, known.get(test, "nothing"), "fail") for test, outcome in found.items()
          if outcome == "fail" and known.get(test) != "fail"]
for (layer, test), was, now in sorted(set(worse)):
    print(f"{layer} {test}: {was} in the list, {now} now")
better = sum(outcome == "pass" and known.get(test) != "pass" for test, outcome in found.items())
count = {kind: sum(outcome == kind for outcome in found.values()) for kind in ("pass", "skip", "fail")}
print(f"{count['pass']} passed, {count['skip']} skipped, {count['fail']} failed")
if better:
    print(f"{better} pass that the list doesn't say so of: UPDATE=1 writes it anew")
sys.exit(1 if worse else 0)
PY
