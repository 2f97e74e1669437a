#include "gic/nic.hpp"

#include <cstddef>

using namespace gic;

// One visit of a warp to its queue pairs.
extern "C" u32 gic_host_nic_step(const nic::Tables* tables, u32 warp, u32 budget) {
    nic::Scratch scratch{};
    nic::Engine<Scope::system> engine(*tables, warp, scratch);
    u32 done = engine.step(budget);
    engine.save();
    return done;
}

// For the tests that hold the header to the Rust mirror and to crates/softnic.
extern "C" u32 gic_host_nic_syndrome(u32 check) {
    return nic::syndrome_of(static_cast<nic::Check>(check));
}
extern "C" bool gic_host_nic_layouts(const u64* rust, u32 count) {
    const u64 cpp[] = {
        sizeof(nic::Tables),
        offsetof(nic::Tables, order),
        offsetof(nic::Tables, ended),
        offsetof(nic::Tables, max_qps),
        offsetof(nic::Tables, warps),
        sizeof(nic::Qp),
        offsetof(nic::Qp, fixed.qpn),
        offsetof(nic::Qp, fixed.nic),
        offsetof(nic::Qp, own.head),
        offsetof(nic::Qp, own.attention),
        offsetof(nic::Qp, own.fail_after),
        offsetof(nic::Qp, own.send),
        offsetof(nic::Qp, shared.state),
        offsetof(nic::Qp, shared.rq_head),
        offsetof(nic::Qp, shared.receive),
        sizeof(nic::Cq),
        offsetof(nic::Cq, log_size),
        sizeof(nic::Region),
        offsetof(nic::Region, tag),
        sizeof(nic::Target),
        offsetof(nic::Target, tag),
        sizeof(nic::Finding),
        offsetof(nic::Finding, found),
        sizeof(nic::Control),
    };
    if (count != sizeof(cpp) / sizeof(cpp[0])) return false;
    for (u32 i = 0; i < count; i++)
        if (cpp[i] != rust[i]) return false;
    return true;
}
