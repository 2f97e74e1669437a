/* UCCL-EP's structures that state.cpp fills in, and what hangs on them. */
#pragma once
#include "common.hpp"
#include "d2h_queue_device.cuh"
#include "fifo_device.hpp"
#include "ring_buffer.cuh"

#include <stddef.h>
#include <stdint.h>

#define GIC_UCCL_VERSION "0.1.1"
#define GIC_UCCL(what) "UCCL " GIC_UCCL_VERSION ": " what

#ifndef USE_MSCCLPP_FIFO_BACKEND
#error "UCCL 0.1.1: common.hpp defines USE_MSCCLPP_FIFO_BACKEND"
#endif

static_assert(kNumProxyThs == 4, GIC_UCCL("kNumProxyThs is 4"));
static_assert(kChannelPerProxy == 8, GIC_UCCL("kChannelPerProxy is 8"));
static_assert(kQueueSize == 2048, GIC_UCCL("kQueueSize is 2048"));
static_assert(kMaxInflightLowLatency == 32, GIC_UCCL("kMaxInflightLowLatency is 32"));
static_assert(kMaxInflightNormal == 8, GIC_UCCL("kMaxInflightNormal is 8"));
static_assert(kWriteAddrShiftNormal == 2, GIC_UCCL("kWriteAddrShiftNormal is 2"));
static_assert(kWriteAddrShiftLowLatency == 4, GIC_UCCL("kWriteAddrShiftLowLatency is 4"));

static_assert(sizeof(TransferCmd) == 16, GIC_UCCL("sizeof(TransferCmd) is 16"));
static_assert(offsetof(TransferCmd, cmd_type) == 0, GIC_UCCL("TransferCmd::cmd_type is at 0"));
static_assert(offsetof(TransferCmd, dst_rank) == 1, GIC_UCCL("TransferCmd::dst_rank is at 1"));
static_assert(offsetof(TransferCmd, bytes_and_val) == 2, GIC_UCCL("TransferCmd::bytes_and_val is at 2"));
static_assert(offsetof(TransferCmd, req_rptr) == 6, GIC_UCCL("TransferCmd::req_rptr is at 6"));
static_assert(offsetof(TransferCmd, req_lptr) == 10, GIC_UCCL("TransferCmd::req_lptr is at 10"));
static_assert(offsetof(TransferCmd, value) == 10, GIC_UCCL("TransferCmd::value is at 10"));
static_assert(offsetof(TransferCmd, expert_idx) == 14, GIC_UCCL("TransferCmd::expert_idx is at 14"));
static_assert(static_cast<uint8_t>(CmdType::WRITE) == 1 && static_cast<uint8_t>(CmdType::ATOMIC) == 2 &&
                  static_cast<uint8_t>(CmdType::QUIET) == 3,
              GIC_UCCL("CmdType has WRITE 1, ATOMIC 2, QUIET 3"));

static_assert(sizeof(mscclpp::ProxyTrigger) == 32, GIC_UCCL("sizeof(mscclpp::ProxyTrigger) is 32"));
static_assert(sizeof(mscclpp::FifoDeviceHandle) == 40, GIC_UCCL("sizeof(mscclpp::FifoDeviceHandle) is 40"));
static_assert(offsetof(mscclpp::FifoDeviceHandle, triggers) == 0,
              GIC_UCCL("FifoDeviceHandle::triggers is at 0"));
static_assert(offsetof(mscclpp::FifoDeviceHandle, head) == 8, GIC_UCCL("FifoDeviceHandle::head is at 8"));
static_assert(offsetof(mscclpp::FifoDeviceHandle, tail) == 16, GIC_UCCL("FifoDeviceHandle::tail is at 16"));
static_assert(offsetof(mscclpp::FifoDeviceHandle, tailCache) == 24,
              GIC_UCCL("FifoDeviceHandle::tailCache is at 24"));
static_assert(offsetof(mscclpp::FifoDeviceHandle, size) == 32, GIC_UCCL("FifoDeviceHandle::size is at 32"));
static_assert(sizeof(d2hq::D2HHandle) == 40, GIC_UCCL("sizeof(d2hq::D2HHandle) is 40"));
static_assert(offsetof(d2hq::D2HHandle, fifo) == 0, GIC_UCCL("D2HHandle::fifo is at 0"));

static_assert(sizeof(DeviceToHostCmdBuffer) == 33280, GIC_UCCL("sizeof(DeviceToHostCmdBuffer) is 33280"));
static_assert(offsetof(DeviceToHostCmdBuffer, head) == 0, GIC_UCCL("RingBuffer::head is at 0"));
static_assert(offsetof(DeviceToHostCmdBuffer, tail) == 8, GIC_UCCL("RingBuffer::tail is at 8"));
static_assert(offsetof(DeviceToHostCmdBuffer, buf) == 16, GIC_UCCL("RingBuffer::buf is at 16"));

namespace uccl_ep {

/* As the adapter numbers them; `adapter.rs` has their names. */
enum Variant : uint32_t {
    kLowLatency,
    kNormal,
    kPush,
    kRing,
    kNoHandle,
    kSplit,
    kNoFence,
    kNoSpace,
    kNoReserve,
    kVariants
};

constexpr int kChannels = kNumProxyThs * kChannelPerProxy;

/* The word that signals go to: in the last 64 bytes of the other side's payload memory. */
constexpr uint64_t kSignalFromEnd = 64;

/* What a kernel is told. */
struct State {
    const uint64_t* channels; /* addresses of d2hq::D2HHandle, or of rings */
    uint64_t local;
    uint64_t remote;
    uint64_t signal;
    int32_t dst_rank;
};

}  // namespace uccl_ep
