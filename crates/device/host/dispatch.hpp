// The host build: run-time choices are looked up in tables of compile-time ones.
#pragma once

#include "gic/gda.hpp"

namespace gic {

// The run-time form of a choice. Mirrored in crates/device/src/choice.rs.
struct RunTimeChoice {
    u32 order, sharing, cq_kind, cq_load, ringing, signalling, transport, checked, max_blocks;
};

template <u32 V>
struct Constant {
    static constexpr u32 value = V;
};

// Calls `body` with `index` as a compile-time constant below N; false if it isn't below.
template <u32 N, class Body>
bool with(u32 index, Body body) {
    if constexpr (N == 0) {
        return false;
    } else {
        return index == N - 1 ? body(Constant<N - 1>{}) : with<N - 1>(index, body);
    }
}

}  // namespace gic
