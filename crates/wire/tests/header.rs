//! Layouts and values against rdma-core's own header, where it is installed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::doorbell;
use wire::wqe::{
    AV_EXTENDED, AddressVector, Atomic, Ctrl, CtrlFlags, Data, INLINE, INVALID_LKEY, Opcode, Raddr,
    WQEBB,
};

/// Expressions of C++ and what they must be here.
fn expected() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut add = |c: &str, value: usize| {
        all.insert(c.to_owned(), value as u64);
    };
    macro_rules! layout {
        ($c:literal, $t:ty, $($cf:literal = $rf:ident),* $(,)?) => {
            add(concat!("sizeof(", $c, ")"), size_of::<$t>());
            $(add(concat!("offsetof(", $c, ", ", $cf, ")"), offset_of!($t, $rf));)*
        };
    }
    layout!(
        "mlx5_wqe_ctrl_seg",
        Ctrl,
        "opmod_idx_opcode" = opmod_index_opcode,
        "qpn_ds" = qpn_ds,
        "signature" = signature,
        "fm_ce_se" = fm_ce_se,
        "imm" = imm
    );
    layout!("mlx5_wqe_raddr_seg", Raddr, "raddr" = addr, "rkey" = rkey);
    layout!("mlx5_wqe_data_seg", Data, "byte_count" = byte_count, "lkey" = lkey, "addr" = addr);
    layout!("mlx5_wqe_atomic_seg", Atomic, "swap_add" = swap_add, "compare" = compare);
    layout!(
        "mlx5_wqe_av",
        AddressVector,
        "key" = key,
        "dqp_dct" = dqp_dct,
        "stat_rate_sl" = stat_rate_sl,
        "fl_mlid" = fl_mlid,
        "rlid" = rlid,
        "rmac" = rmac,
        "tclass" = tclass,
        "hop_limit" = hop_limit,
        "grh_gid_fl" = grh_gid_fl,
        "rgid" = rgid
    );
    layout!(
        "mlx5_cqe64",
        Cqe,
        "imm_inval_pkey" = imm_inval,
        "byte_cnt" = byte_count,
        "timestamp" = timestamp,
        "sop_drop_qpn" = sop_qpn,
        "wqe_counter" = wqe_counter,
        "signature" = signature,
        "op_own" = op_own
    );
    layout!(
        "mlx5_err_cqe",
        Cqe,
        "s_wqe_opcode_qpn" = sop_qpn,
        "wqe_counter" = wqe_counter,
        "op_own" = op_own
    );
    add("offsetof(mlx5_err_cqe, vendor_err_synd)", offset_of!(Cqe, timestamp) + 6);
    add("offsetof(mlx5_err_cqe, syndrome)", offset_of!(Cqe, timestamp) + 7);
    for (c, value) in [
        ("MLX5_WQE_CTRL_CQ_UPDATE", CtrlFlags::CQ_UPDATE.0.into()),
        ("MLX5_WQE_CTRL_SOLICITED", CtrlFlags::SOLICITED.0.into()),
        ("MLX5_WQE_CTRL_FENCE", CtrlFlags::FENCE.0.into()),
        ("MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE", CtrlFlags::SMALL_FENCE.0.into()),
        ("(unsigned)MLX5_INLINE_SEG", INLINE as usize),
        ("(unsigned)MLX5_EXTENDED_UD_AV", AV_EXTENDED as usize),
        ("MLX5_INVALID_LKEY", INVALID_LKEY as usize),
        ("MLX5_SEND_WQE_BB", WQEBB),
        ("MLX5_RCV_DBR", doorbell::RECORD_RECEIVE),
        ("MLX5_SND_DBR", doorbell::RECORD_SEND),
        ("MLX5_CQ_DOORBELL", doorbell::UAR_CQ_ARM),
    ] {
        add(c, value);
    }
    for (c, opcode) in [
        ("NOP", Opcode::Nop),
        ("SEND_INVAL", Opcode::SendInval),
        ("RDMA_WRITE", Opcode::RdmaWrite),
        ("RDMA_WRITE_IMM", Opcode::RdmaWriteImm),
        ("SEND", Opcode::Send),
        ("SEND_IMM", Opcode::SendImm),
        ("TSO", Opcode::Tso),
        ("RDMA_READ", Opcode::RdmaRead),
        ("ATOMIC_CS", Opcode::AtomicCs),
        ("ATOMIC_FA", Opcode::AtomicFa),
        ("ATOMIC_MASKED_CS", Opcode::AtomicMaskedCs),
        ("ATOMIC_MASKED_FA", Opcode::AtomicMaskedFa),
        ("FMR", Opcode::Fmr),
        ("LOCAL_INVAL", Opcode::LocalInval),
        ("CONFIG_CMD", Opcode::ConfigCmd),
        ("SET_PSV", Opcode::SetPsv),
        ("UMR", Opcode::Umr),
        ("TAG_MATCHING", Opcode::TagMatching),
        ("FLOW_TBL_ACCESS", Opcode::FlowTableAccess),
        ("MMO", Opcode::Mmo),
    ] {
        add(&format!("MLX5_OPCODE_{c}"), opcode as usize);
    }
    for (c, opcode) in [
        ("REQ", CqeOpcode::Requester),
        ("RESP_WR_IMM", CqeOpcode::ResponderWriteImm),
        ("RESP_SEND", CqeOpcode::ResponderSend),
        ("RESP_SEND_IMM", CqeOpcode::ResponderSendImm),
        ("RESP_SEND_INV", CqeOpcode::ResponderSendInval),
        ("RESIZE_CQ", CqeOpcode::Resize),
        ("NO_PACKET", CqeOpcode::NoPacket),
        ("SIG_ERR", CqeOpcode::SignatureError),
        ("REQ_ERR", CqeOpcode::RequesterError),
        ("RESP_ERR", CqeOpcode::ResponderError),
        ("INVALID", CqeOpcode::Invalid),
    ] {
        add(&format!("MLX5_CQE_{c}"), opcode as usize);
    }
    for (c, syndrome) in [
        ("LOCAL_LENGTH_ERR", Syndrome::LocalLength),
        ("LOCAL_QP_OP_ERR", Syndrome::LocalQpOp),
        ("LOCAL_PROT_ERR", Syndrome::LocalProtection),
        ("WR_FLUSH_ERR", Syndrome::Flushed),
        ("MW_BIND_ERR", Syndrome::MemoryWindowBind),
        ("BAD_RESP_ERR", Syndrome::BadResponse),
        ("LOCAL_ACCESS_ERR", Syndrome::LocalAccess),
        ("REMOTE_INVAL_REQ_ERR", Syndrome::RemoteInvalidRequest),
        ("REMOTE_ACCESS_ERR", Syndrome::RemoteAccess),
        ("REMOTE_OP_ERR", Syndrome::RemoteOperation),
        ("TRANSPORT_RETRY_EXC_ERR", Syndrome::TransportRetryExceeded),
        ("RNR_RETRY_EXC_ERR", Syndrome::RnrRetryExceeded),
        ("REMOTE_ABORTED_ERR", Syndrome::RemoteAborted),
    ] {
        add(&format!("MLX5_CQE_SYNDROME_{c}"), syndrome as usize);
    }
    for syndrome in Syndrome::ALL {
        let status = syndrome.wc_status();
        add(status.name, status.value.into());
    }
    all
}

#[test]
fn layouts_and_values_are_those_of_mlx5dv_h() {
    if !Path::new("/usr/include/infiniband/mlx5dv.h").exists() {
        eprintln!("SKIPPED: infiniband/mlx5dv.h is not installed (package libibverbs-dev)");
        return;
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        eprintln!("SKIPPED: no C++ compiler `{compiler}`");
        return;
    }
    let expected = expected();
    let mut source = String::from(
        "#include <cstddef>\n#include <cstdio>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/mlx5dv.h>\nint main() {\n",
    );
    for expression in expected.keys() {
        source += &format!(
            "std::printf(\"%s=%llu\\n\", \"{expression}\", (unsigned long long)({expression}));\n"
        );
    }
    source += "}\n";
    let dir = std::env::temp_dir().join(format!("wire-header-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (file, program) = (dir.join("probe.cc"), dir.join("probe"));
    std::fs::write(&file, source).unwrap();
    let built =
        Command::new(&compiler).args(["-w", "-o"]).arg(&program).arg(&file).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let seen: BTreeMap<String, u64> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.rsplit_once('=').unwrap())
        .map(|(expression, value)| (expression.to_owned(), value.parse().unwrap()))
        .collect();
    assert_eq!(seen, expected);
}
