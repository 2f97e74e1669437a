/* The declaration that fifo.cpp wants of libnuma's <numaif.h>. Never called: no device of the harness has a NUMA node. */
#pragma once
#define MPOL_PREFERRED 1
static inline long set_mempolicy(int, const unsigned long*, unsigned long) {
    return 0;
}
