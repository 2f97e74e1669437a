// One operation, chosen at run time: for the tests.
#pragma once

#include "gic/gda.hpp"

namespace gic {

// `op` is the opcode; 0x80 and above are those that have none of their own.
constexpr u32 kOpInline = 0x88;     // inline write of what is at `local`
constexpr u32 kOpValue = 0x89;      // inline write of `a`
constexpr u32 kOpPutSignal = 0x8a;  // and a fetch-and-add of 1 to address `a` under rkey `b`
constexpr u32 kOpWarp = 0x8b;       // `a` lanes write `bytes` bytes each, side by side

struct WarpLane {
    Remote remote;
    Local local;
    u32 bytes;
};

template <class C>
Posted post_one(Endpoint<C>& e, u32 op, Remote remote, Local local, u32 bytes, u64 a, u64 b, const How& how) {
    switch (op) {
    case 0x00: return e.nop(how);
    case 0x08: return e.put(remote, local, bytes, how);
    case 0x10: return e.get(local, remote, bytes, how);
    case 0x11: return e.compare_swap(remote, a, b, local, how);
    case 0x12: return e.fetch_add(remote, a, local, how);
    case 0x15: return e.fetch_add32(remote, static_cast<u32>(a), local, how);
    case kOpInline: return e.put_inline(remote, reinterpret_cast<const u8*>(local.address), bytes, how);
    case kOpValue: return e.put_value(remote, a, how);
    case kOpPutSignal: return e.put_signal(remote, local, bytes, {a, static_cast<u32>(b)}, 1, local, how);
    case kOpWarp:
        return e.put_warp(
            Warp(a >= kWarp ? 0xffffffffu : (1u << a) - 1),
            [&](u32 lane) {
                u64 at = static_cast<u64>(lane) * bytes;
                return WarpLane{{remote.address + at, remote.rkey}, {local.address + at, local.lkey}, bytes};
            },
            how);
    default: return {0, Failure::of(Why::bad_length, 0)};
    }
}

}  // namespace gic
