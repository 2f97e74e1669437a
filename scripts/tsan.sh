#!/usr/bin/env bash
# The host-compiled device code under ThreadSanitizer: posters and a NIC, both instrumented.
# Then the same with the turn passed on without release, which must be reported.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cxx=${CXX:-g++}
export TSAN_OPTIONS="halt_on_error=1 exitcode=66"

build() {  # source, include directory, program
    "$cxx" -std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize=thread -I "$2" "crates/model/tsan/$1.cpp" -o "$3"
}
# Without address space randomisation: ThreadSanitizer needs its shadow's addresses to be free.
sanitized() {
    if command -v setarch >/dev/null; then setarch "$(uname -m)" -R timeout 120 "$1"; else timeout 120 "$1"; fi
}

for program in queue like; do
    build "$program" crates/device/include "$out/$program"
    sanitized "$out/$program"
done

cp -r crates/device/include "$out/include"
turn='mem::store_release<Scope::gpu>(&s->ready, next)'
if [ "$(grep -cF "$turn" "$out/include/gic/gda.hpp")" != 1 ]; then
    echo "scripts/tsan.sh: gda.hpp no longer has the store that the mutation weakens: $turn" >&2
    exit 1
fi
sed -i 's/mem::store_release<Scope::gpu>(&s->ready, next)/mem::store_relaxed<Scope::gpu>(\&s->ready, next)/' \
    "$out/include/gic/gda.hpp"
build queue "$out/include" "$out/weakened"
if sanitized "$out/weakened" >"$out/log" 2>&1; then
    echo "scripts/tsan.sh: a turn that is passed on without release was not reported" >&2
    exit 1
fi
if ! grep -q "WARNING: ThreadSanitizer: data race" "$out/log"; then
    echo "scripts/tsan.sh: the weakened program ended for another reason:" >&2
    cat "$out/log" >&2
    exit 1
fi
echo "a turn that is passed on without release is reported"
