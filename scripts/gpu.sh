#!/usr/bin/env bash
# What only a GPU can check, in some six minutes: the GPU's tests, the conformance suite on the NIC in the GPU,
# compute-sanitizer's memcheck on bounded runs, the whole suite, and the libraries that are there beside it.
#
#   scripts/gpu.sh build DIR      where Rust is: the release binary and the tests, stripped, into DIR
#   scripts/gpu.sh check DIR OUT [NAME=DIR …]
#                                 where the GPU is (DIR copied there): results into OUT; exit 1 where a check failed.
#                                 NAME=DIR are libraries' checkouts, as `gicbench run --peer-path` takes them
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '5,8s/^# *//p' "$0" >&2; exit 2; }

build() {
    mkdir -p "$1"
    cargo build --release --package gicbench
    cp "$(target_dir)/release/gicbench" "$1/gicbench"
    test_binary mini-gda gpu "$1/gpu_test"
    test_binary mini-proxy like "$1/proxy_test"
    test_binary rdma conformance "$1/conformance"
    strip "$1"/{gicbench,gpu_test,proxy_test,conformance}
}

target_dir() { cargo metadata --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])'; }

test_binary() {
    cargo test --package "$1" --test "$2" --no-run --message-format json |
        python3 -c 'import json,sys; print([e for m in sys.stdin if (e := json.loads(m).get("executable"))][-1])' |
        xargs -I{} cp {} "$3"
}

# Runs a command in a session of its own and kills all of it when late: compute-sanitizer's child outlives `timeout`.
limited() {
    local seconds=$1 status=0
    shift
    setsid "$@" & local child=$!
    for ((i = 0; i < seconds * 5; i++)); do
        kill -0 $child 2>/dev/null || break
        sleep 0.2
    done
    if kill -9 -- -$child 2>/dev/null; then echo "killed after $seconds s: $*"; fi
    wait $child || status=$?
    return $status
}

failed=0
step() {
    local name=$1 out=$2
    shift 2
    local status=0
    "$@" >>"$out" 2>&1 || status=$?
    case $status in
        0) echo "passed   $name" ;;
        4) echo "partial  $name: what this GPU lacks is in $out"; grep '^# not run' "$out" || true ;;
        *) failed=1; echo "FAILED   $name (exit $status): $out" ;;
    esac
}

memcheck=(compute-sanitizer --tool memcheck --error-exitcode 9)

check() {
    local bin=$1 out=$2 paths=()
    shift 2
    for path in "$@"; do paths+=(--peer-path "$path"); done
    command -v nvidia-smi >/dev/null || { echo "scripts/gpu.sh check needs nvidia-smi: is there a GPU and its driver?" >&2; exit 2; }
    export GICBENCH_REQUIRE_GPU=1
    mkdir -p "$out"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,temperature.gpu --format=csv,noheader >"$out/machine.txt"
    "$bin/gicbench" doctor "${paths[@]}" >>"$out/machine.txt" 2>&1 || true
    step "tests on the GPU" "$out/tests.txt" limited 60 "$bin/gpu_test" --test-threads=1
    step "tests on the GPU, proxied" "$out/tests.txt" limited 60 "$bin/proxy_test" --test-threads=1
    step "conformance of the NIC in the GPU" "$out/tests.txt" limited 60 "$bin/conformance" --test-threads=1
    if command -v compute-sanitizer >/dev/null; then
        # Beside the tool a second kernel doesn't start: the engine is checked alone, and submitters without it.
        step "memcheck: the NIC in the GPU" "$out/memcheck.txt" limited 40 env CONFORMANCE_PATIENCE_MS=60 \
            "${memcheck[@]}" --report-api-errors no "$bin/conformance" --test-threads=1 cases:: errors::
        step "memcheck: submitters, NIC soft" "$out/memcheck.txt" limited 40 "${memcheck[@]}" "$bin/gicbench" run \
            latency handoff inline quiet --submitter cuda --nic soft -n 50 -w 0 --deadline 60s
        step "memcheck: rates, NIC none" "$out/memcheck.txt" limited 40 "${memcheck[@]}" "$bin/gicbench" run batching \
            --submitter cuda --nic none --qps 2 --batch 1,32 -n 1000 -w 0 --duration 50ms --sharing exclusive,warp,thread --deadline 60s
    else
        echo "skipped memcheck: compute-sanitizer isn't in PATH (it comes with the CUDA toolkit)"
    fi
    step "the suite" "$out/table.txt" limited 400 "$bin/gicbench" run --suite suites/gpu.toml --submitter cuda --json "$out/run.json"
    step "the libraries" "$out/peers-table.txt" limited 400 "$bin/gicbench" run --suite suites/peers.toml --submitter cuda \
        --json "$out/peers.json" "${paths[@]}"
    exit $failed
}

case ${1:-} in
    build) [ $# = 2 ] || usage; build "$2" ;;
    check) [ $# -ge 3 ] || usage; shift; check "$@" ;;
    *) usage ;;
esac
