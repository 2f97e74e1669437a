/* The mlx5 formats that peers' device headers name, under the names that they use, so that they compile without
 * libibverbs' development files: facts of the format (rdma-core's mlx5dv.h, mlx5_ifc.h), nothing of its code.
 * A system's own <infiniband/mlx5dv.h> does as well; this one is found first. */
#pragma once
#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>

#define GIC_MLX5_PACKED __attribute__((packed, aligned(4)))

enum {
    MLX5_SEND_WQE_BB = 64,
    MLX5_SEND_WQE_SHIFT = 6,
};

enum {
    MLX5_RCV_DBR = 0,
    MLX5_SND_DBR = 1,
};

enum {
    MLX5_OPCODE_NOP = 0x00,
    MLX5_OPCODE_RDMA_WRITE = 0x08,
    MLX5_OPCODE_RDMA_WRITE_IMM = 0x09,
    MLX5_OPCODE_SEND = 0x0a,
    MLX5_OPCODE_SEND_IMM = 0x0b,
    MLX5_OPCODE_RDMA_READ = 0x10,
    MLX5_OPCODE_ATOMIC_CS = 0x11,
    MLX5_OPCODE_ATOMIC_FA = 0x12,
    MLX5_OPCODE_ATOMIC_MASKED_CS = 0x14,
    MLX5_OPCODE_ATOMIC_MASKED_FA = 0x15,
};

enum {
    MLX5_WQE_CTRL_SOLICITED = 1 << 1,
    MLX5_WQE_CTRL_CQ_UPDATE = 2 << 2,
    MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE = 1 << 5,
    MLX5_WQE_CTRL_FENCE = 4 << 5,
};

enum {
    MLX5_INLINE_SEG = 0x80000000u,
    MLX5_EXTENDED_UD_AV = 0x80000000u,
};

enum {
    MLX5_INVALID_LKEY = 0x100,
};

enum {
    MLX5_CQE_OWNER_MASK = 1,
    MLX5_CQE_REQ = 0,
    MLX5_CQE_REQ_ERR = 13,
    MLX5_CQE_RESP_ERR = 14,
    MLX5_CQE_INVALID = 15,
};

struct mlx5_wqe_ctrl_seg {
    __be32 opmod_idx_opcode;
    __be32 qpn_ds;
    uint8_t signature;
    __be16 dci_stream_channel_id;
    uint8_t fm_ce_se;
    __be32 imm;
} GIC_MLX5_PACKED;

struct mlx5_wqe_av {
    union {
        struct {
            __be32 qkey;
            __be32 reserved;
        } qkey;
        __be64 dc_key;
    } key;
    __be32 dqp_dct;
    uint8_t stat_rate_sl;
    uint8_t fl_mlid;
    __be16 rlid;
    uint8_t reserved0[4];
    uint8_t rmac[6];
    uint8_t tclass;
    uint8_t hop_limit;
    __be32 grh_gid_fl;
    uint8_t rgid[16];
};

struct mlx5_wqe_raddr_seg {
    __be64 raddr;
    __be32 rkey;
    __be32 reserved;
};

struct mlx5_wqe_data_seg {
    __be32 byte_count;
    __be32 lkey;
    __be64 addr;
};

struct mlx5_wqe_inl_data_seg {
    uint32_t byte_count;
};

struct mlx5_wqe_atomic_seg {
    __be64 swap_add;
    __be64 compare;
};

struct mlx5_cqe64 {
    uint8_t rsvd0[44];
    __be32 byte_cnt;
    __be64 timestamp;
    __be32 sop_drop_qpn;
    __be16 wqe_counter;
    uint8_t signature;
    uint8_t op_own;
};

struct mlx5_err_cqe {
    uint8_t rsvd0[54];
    uint8_t vendor_err_synd;
    uint8_t syndrome;
    __be32 s_wqe_opcode_qpn;
    __be16 wqe_counter;
    uint8_t signature;
    uint8_t op_own;
};

#undef GIC_MLX5_PACKED

#ifdef __cplusplus
static_assert(sizeof(mlx5_wqe_ctrl_seg) == 16 && offsetof(mlx5_wqe_ctrl_seg, fm_ce_se) == 11,
              "mlx5 control segment");
static_assert(sizeof(mlx5_wqe_av) == 48 && offsetof(mlx5_wqe_av, rmac) == 20 &&
                  offsetof(mlx5_wqe_av, rgid) == 32,
              "mlx5 address vector");
static_assert(sizeof(mlx5_wqe_raddr_seg) == 16 && sizeof(mlx5_wqe_data_seg) == 16, "mlx5 address segments");
static_assert(sizeof(mlx5_wqe_inl_data_seg) == 4 && sizeof(mlx5_wqe_atomic_seg) == 16,
              "mlx5 inline and atomic segments");
static_assert(sizeof(mlx5_cqe64) == 64 && offsetof(mlx5_cqe64, wqe_counter) == 60, "mlx5 completion");
static_assert(sizeof(mlx5_err_cqe) == 64 && offsetof(mlx5_err_cqe, syndrome) == 55, "mlx5 error completion");
#endif
