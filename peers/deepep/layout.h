/* DeepEP's calls follow NVSHMEM's device state: the checks of its structures are those of NVSHMEM's adapter. */
#pragma once
#include "nvshmem_layout.h"
