/* The names of verbs' objects: all that libraries' headers of structures want of <infiniband/verbs.h>, which points to
 * them and no more. */
#pragma once
struct ibv_ah;
struct ibv_context;
struct ibv_cq;
struct ibv_mr;
struct ibv_pd;
struct ibv_qp;
struct ibv_wc;
