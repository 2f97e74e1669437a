/* What state.cpp fills in and kernel.cu follows, checked against the headers that are compiled with. */
#pragma once
#include <cstddef>
#include <cstdint>
#include <mscclpp/port_channel_device.hpp>

/* The image that a kernel is handed: the channel, and the bases that a caller's offsets count from. */
struct GicMscclpp {
    mscclpp::PortChannelDeviceHandle channel;
    uint64_t local;
    uint64_t remote;
};

#define GIC_KNOWN "MSCCL++ 0.9.0 with the FIFO of #864 (5e038ea, August 2026): "
#define GIC_SIZE(Type, bytes) static_assert(sizeof(Type) == bytes, GIC_KNOWN "sizeof(" #Type ") is " #bytes)
#define GIC_AT(Type, field, at)                                                                              \
    static_assert(offsetof(Type, field) == at, GIC_KNOWN "offsetof(" #Type ", " #field ") is " #at)

GIC_SIZE(mscclpp::FifoDeviceHandle, 56);
GIC_AT(mscclpp::FifoDeviceHandle, triggers, 0);
GIC_AT(mscclpp::FifoDeviceHandle, head, 8);
GIC_AT(mscclpp::FifoDeviceHandle, tail, 16);
GIC_AT(mscclpp::FifoDeviceHandle, tailCache, 24);
GIC_AT(mscclpp::FifoDeviceHandle, size, 32);
GIC_AT(mscclpp::FifoDeviceHandle, sizeMask, 40);
GIC_AT(mscclpp::FifoDeviceHandle, sizeShift, 48);
GIC_SIZE(mscclpp::Host2DeviceSemaphoreDeviceHandle, 16);
GIC_AT(mscclpp::Host2DeviceSemaphoreDeviceHandle, inboundToken, 0);
GIC_AT(mscclpp::Host2DeviceSemaphoreDeviceHandle, expectedInboundToken, 8);
GIC_SIZE(mscclpp::BasePortChannelDeviceHandle, 88);
GIC_AT(mscclpp::BasePortChannelDeviceHandle, semaphoreId_, 0);
GIC_AT(mscclpp::BasePortChannelDeviceHandle, semaphore_, 8);
GIC_AT(mscclpp::BasePortChannelDeviceHandle, fifo_, 24);
GIC_AT(mscclpp::BasePortChannelDeviceHandle, flushDonePos_, 80);
GIC_SIZE(mscclpp::PortChannelDeviceHandle, 96);
GIC_SIZE(mscclpp::ProxyTrigger, 16);

static_assert(mscclpp::TriggerData == 1 && mscclpp::TriggerFlag == 2 && mscclpp::TriggerSync == 4,
              GIC_KNOWN "a trigger's types are 1, 2 and 4");
static_assert(mscclpp::TriggerBitsSize == 32 && mscclpp::TriggerBitsOffset == 32 &&
                  mscclpp::TriggerBitsMemoryId == 9 && mscclpp::TriggerBitsType == 3 &&
                  mscclpp::TriggerBitsSemaphoreId == 10 && mscclpp::TriggerBitsFifoReserved == 1,
              GIC_KNOWN "a trigger's fields have 32, 32, 32, 9, 9, 3, 10 and 1 bits");
