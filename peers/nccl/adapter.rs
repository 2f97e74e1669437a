//! NCCL GIN: GDAKI, and the CPU proxy.
