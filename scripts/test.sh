#!/usr/bin/env bash
# Passes all tests: formats, lints, unit and integration tests, kernels compiled for GPUs by NVRTC, the model
# checks, two ranks on Soft-RoCE and the ThreadSanitizer run. Needs Rust (rustup), a C++ compiler and python3; fetches the rest.
# What a machine lacks is skipped with its reason and listed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in cargo g++ python3; do
    command -v "$tool" >/dev/null || { echo "scripts/test.sh needs $tool: install it and run again" >&2; exit 2; }
done

skips=$(mktemp)
trap 'rm -f "$skips"' EXIT
export GICBENCH_SKIP_LOG=$skips
step() { printf '\n== %s\n' "$*"; }

# NVRTC, the disassembler and clang-format come from PyPI into a folder of this checkout.
venv=target/tools
if [ ! -e "$venv/.ready-2" ]; then
    step "fetching NVRTC, nvdisasm and clang-format"
    mkdir -p target
    if python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check \
        nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.2.51 clang-format==20.1.8; then
        touch "$venv/.ready-2"
    else
        echo "no NVRTC: PyPI or python3-venv can't be had here" | tee -a "$skips"
    fi
fi
if [ -e "$venv/.ready-2" ]; then
    GICBENCH_NVRTC_DIR=$(dirname "$(find "$PWD/$venv" -name libnvrtc.so.13 | head -n 1)")
    GICBENCH_NVDISASM=$(find "$PWD/$venv" -name nvdisasm -type f | head -n 1)
    export GICBENCH_NVRTC_DIR GICBENCH_NVDISASM GICBENCH_REQUIRE_NVRTC=1
fi

# The libraries that are measured beside, and the compiler for their adapters.
if scripts/peers.sh target/peers; then
    export GICBENCH_PEERS=$PWD/target/peers GICBENCH_REQUIRE_PEERS=1
else
    echo "no adapters of other libraries: their packages can't be had from PyPI here" | tee -a "$skips"
fi

step "formats"
cargo fmt --all --check
if [ -e "$venv/.ready-2" ]; then
    git ls-files '*.hpp' '*.cpp' '*.cu' '*.cuh' '*.h' | xargs "$venv/bin/clang-format" --dry-run --Werror
fi

step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

step "tests"
cargo test --workspace --quiet

# The same suite as over the NICs of this project, with the system's libmlx5 in between.
if python3 -c 'import ctypes; ctypes.CDLL("libmlx5.so.1")' 2>/dev/null; then
    step "conformance over libmlx5, on the software ConnectX"
    conformance=$(cargo test -p rdma --test conformance --no-run --message-format=json --quiet |
        python3 -c 'import json, sys
for line in sys.stdin:
    if path := json.loads(line).get("executable"): print(path)')
    for layer in infiniband ethernet; do
        GICBENCH_REQUIRE_MLX5=1 "${CARGO_TARGET_DIR:-target}/debug/gicbench" nic exec --link-layer "$layer" -- "$conformance" --quiet cases:: errors::
    done
else
    echo "conformance over libmlx5: it isn't installed" | tee -a "$skips"
fi

# A driver that isn't this project's.
if command -v qemu-system-x86_64 >/dev/null && command -v apt-get >/dev/null; then
    step "two ranks on Linux' Soft-RoCE, in a virtual machine"
    # 77: the guest's packages can't be had.
    status=0
    GICBENCH=${CARGO_TARGET_DIR:-target}/debug/gicbench scripts/soft-roce.sh || status=$?
    case $status in
        0) ;;
        77) echo "Soft-RoCE: the guest's packages can't be had" | tee -a "$skips" ;;
        *) exit $status ;;
    esac
else
    echo "Soft-RoCE: needs qemu-system-x86_64, and apt for the guest's kernel" | tee -a "$skips"
fi

if [ -x scripts/tsan.sh ]; then
    step "ThreadSanitizer on the host build of the device code"
    scripts/tsan.sh
fi

step "skipped here"
if [ -s "$skips" ]; then sort -u "$skips"; else echo "nothing"; fi
