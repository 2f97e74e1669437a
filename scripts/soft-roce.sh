#!/usr/bin/env bash
# mini-proxy on a driver that isn't this project's: Linux' Soft-RoCE, in a virtual machine, between two ranks.
#
#   scripts/soft-roce.sh            two ranks, data checked; exit status 0 if all of it arrived
#   scripts/soft-roce.sh perftest   perftest on Soft-RoCE, and on the software ConnectX in the same guest
#
# GICBENCH names a binary; otherwise the release build is made. Fetches some 90 MB of Debian's packages once.
set -euo pipefail
cd "$(dirname "$0")/.."
here=scripts/soft-roce
if [ -z "${GICBENCH:-}" ]; then
    cargo build --release --quiet
    GICBENCH=${CARGO_TARGET_DIR:-target}/release/gicbench
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$GICBENCH" "$work/gicbench"
strip "$work/gicbench" 2>/dev/null || true
case ${1:-two-ranks} in
    two-ranks) SHARE=${SHARE:-$work} $here/guest.sh $here/two-ranks.sh $here/veth.sh "$work/gicbench" ;;
    perftest)
        LIMIT_S=${LIMIT_S:-600} $here/guest.sh $here/both.sh $here/perftest.sh "$work/gicbench"
        ;;
    *)
        echo "scripts/soft-roce.sh: two-ranks or perftest" >&2
        exit 2
        ;;
esac
