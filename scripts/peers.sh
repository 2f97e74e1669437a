#!/usr/bin/env bash
# The libraries of PyPI that gicbench measures beside, and the compiler for their adapters, into a Python environment.
#
#   scripts/peers.sh DIR     then GICBENCH_PEERS=DIR gicbench run latency --transport peers --submitter cuda
#
# Some 600 MB. Libraries that are checkouts are named by --peer-path; `gicbench list` says which.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,6s/^# *//p' "$0" >&2; exit 2; }
command -v python3 >/dev/null || { echo "scripts/peers.sh needs python3 with venv: install it and run again" >&2; exit 2; }

# All pinned: the parts of a compiler must be of one version, and the adapters know these libraries' versions.
packages=(
    nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    nvidia-nvshmem-cu13==3.4.5 nvidia-nccl-cu13==2.28.9
)
marker=$1/.ready-$(echo "${packages[@]}" | cksum | cut -d' ' -f1)
[ ! -e "$marker" ] || exit 0
python3 -m venv "$1"
# Only what is named: the libraries' own requirements are for their host side.
"$1/bin/pip" install --quiet --disable-pip-version-check --no-deps "${packages[@]}"
touch "$marker"
