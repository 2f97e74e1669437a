//! libibverbs' layouts against the header of this machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::mem::{offset_of, size_of};
use std::process::Command;

use rdma::ibv::ffi;

/// Skipped tests are listed at the end of the run (`scripts/test.sh`).
fn skip(what: &str) {
    eprintln!("SKIPPED: {what}");
    if let Some(path) = std::env::var_os("GICBENCH_SKIP_LOG") {
        use std::io::Write as _;
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "{what}").unwrap();
    }
}

macro_rules! layout {
    ($($c:literal = $value:expr;)*) => { [$(($c, $value)),*] };
}

#[test]
fn layouts_are_those_of_the_header() {
    let expected = layout! {
        "sizeof(struct ibv_context_ops)" = size_of::<ffi::ContextOps>();
        "offsetof(struct ibv_context_ops, poll_cq)" = offset_of!(ffi::ContextOps, poll_cq);
        "offsetof(struct ibv_context_ops, req_notify_cq)" = offset_of!(ffi::ContextOps, req_notify_cq);
        "offsetof(struct ibv_context_ops, post_send)" = offset_of!(ffi::ContextOps, post_send);
        "offsetof(struct ibv_context_ops, post_recv)" = offset_of!(ffi::ContextOps, post_recv);
        "offsetof(struct ibv_context, async_fd)" = offset_of!(ffi::Context, async_fd);
        "sizeof(struct ibv_mr)" = size_of::<ffi::Mr>();
        "offsetof(struct ibv_mr, rkey)" = offset_of!(ffi::Mr, rkey);
        "offsetof(struct ibv_qp, qp_num)" = offset_of!(ffi::Qp, qp_num);
        "sizeof(struct ibv_device_attr)" = size_of::<ffi::DeviceAttr>();
        "offsetof(struct ibv_device_attr, max_qp_rd_atom)" = offset_of!(ffi::DeviceAttr, max_qp_rd_atom);
        "offsetof(struct ibv_device_attr, atomic_cap)" = offset_of!(ffi::DeviceAttr, atomic_cap);
        "offsetof(struct ibv_device_attr, phys_port_cnt)" = offset_of!(ffi::DeviceAttr, phys_port_cnt);
        "sizeof(struct ibv_port_attr)" = size_of::<ffi::PortAttr>();
        "offsetof(struct ibv_port_attr, lid)" = offset_of!(ffi::PortAttr, lid);
        "offsetof(struct ibv_port_attr, link_layer)" = offset_of!(ffi::PortAttr, link_layer);
        "sizeof(struct ibv_gid_entry)" = size_of::<ffi::GidEntry>();
        "offsetof(struct ibv_gid_entry, gid_type)" = offset_of!(ffi::GidEntry, gid_type);
        "sizeof(struct ibv_send_wr)" = size_of::<ffi::SendWr>();
        "offsetof(struct ibv_send_wr, imm_data)" = offset_of!(ffi::SendWr, imm_data);
        "offsetof(struct ibv_send_wr, wr)" = offset_of!(ffi::SendWr, wr);
        "offsetof(struct ibv_send_wr, wr.atomic.rkey)" =
            offset_of!(ffi::SendWr, wr) + offset_of!(ffi::WrAtomic, rkey);
        "offsetof(struct ibv_send_wr, wr.rdma.rkey)" =
            offset_of!(ffi::SendWr, wr) + offset_of!(ffi::WrRdma, rkey);
        "sizeof(struct ibv_recv_wr)" = size_of::<ffi::RecvWr>();
        "sizeof(struct ibv_wc)" = size_of::<ffi::Wc>();
        "offsetof(struct ibv_wc, wc_flags)" = offset_of!(ffi::Wc, wc_flags);
        "sizeof(struct ibv_qp_init_attr)" = size_of::<ffi::QpInitAttr>();
        "offsetof(struct ibv_qp_init_attr, qp_type)" = offset_of!(ffi::QpInitAttr, qp_type);
        "sizeof(struct ibv_qp_attr)" = size_of::<ffi::QpAttr>();
        "offsetof(struct ibv_qp_attr, ah_attr)" = offset_of!(ffi::QpAttr, ah_attr);
        "offsetof(struct ibv_qp_attr, pkey_index)" = offset_of!(ffi::QpAttr, pkey_index);
        "offsetof(struct ibv_qp_attr, rnr_retry)" = offset_of!(ffi::QpAttr, rnr_retry);
        "sizeof(struct ibv_ah_attr)" = size_of::<ffi::AhAttr>();
        "offsetof(struct ibv_ah_attr, dlid)" = offset_of!(ffi::AhAttr, dlid);
        "sizeof(struct ibv_async_event)" = size_of::<ffi::AsyncEvent>();
        "IBV_ACCESS_RELAXED_ORDERING" = ffi::access::RELAXED_ORDERING as usize;
        "IBV_WC_WITH_IMM" = ffi::WC_WITH_IMM as usize;
        "IBV_QPT_RC" = ffi::QPT_RC as usize;
        "IBV_PORT_ACTIVE" = ffi::PORT_ACTIVE as usize;
    };
    let lines: String =
        expected.iter().map(|(c, _)| format!("printf(\"%zu\\n\", (size_t)({c}));\n")).collect();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let text = format!(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{lines}return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    match Command::new("cc").arg("-o").arg(&program).arg(&source).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("infiniband/verbs.h"), "{said}");
            return skip("libibverbs-dev isn't installed: its layouts can't be compared");
        }
        Err(error) => return skip(&format!("no C compiler: {error}")),
    }
    let output = Command::new(&program).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let found: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for ((c, ours), theirs) in expected.into_iter().zip(found) {
        assert_eq!(ours, theirs, "{c}");
    }
}
