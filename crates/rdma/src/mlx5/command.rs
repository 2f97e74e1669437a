//! The commands, as bytes: pure functions of what is asked for.

use softnic::Access;
use wire::devx::{
    Field, NUMBER, OP_MOD, OPCODE, Opcode, SHORT, ads, cqc, create_cq, create_dct, create_qp, dctc,
    modify_qp, qpc, query_hca_cap,
};

use crate::{Address, ConnectAttr, CqKind, Transport};

/// A stretch of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) umem: u32,
    pub(super) offset: u64,
}

/// A completion queue to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqSpec {
    pub(super) entries: Part,
    pub(super) record: Part,
    pub(super) log_size: u32,
    pub(super) kind: CqKind,
    pub(super) page: u32,
    pub(super) eqn: u32,
}

/// A queue pair to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpSpec {
    pub(super) transport: Transport,
    pub(super) pdn: u32,
    /// Receives first, sends right behind.
    pub(super) queues: Part,
    pub(super) record: Part,
    pub(super) log_blocks: u32,
    pub(super) log_receives: Option<u32>,
    pub(super) page: u32,
    pub(super) send_cqn: u32,
    pub(super) recv_cqn: u32,
}

/// A DC target to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct DctSpec {
    pub(super) pdn: u32,
    pub(super) cqn: u32,
    pub(super) srqn: u32,
    pub(super) key: u64,
    pub(super) access: Access,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) mtu: u32,
}

/// The way of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) port: u8,
    /// Which of this port's GIDs is sent.
    pub(super) gid_index: u8,
    pub(super) peer: Address,
    /// Packets carry a global route.
    pub(super) is_global: bool,
    /// log2 of reads and atomics in flight, either side.
    pub(super) log_reads: u8,
    /// The peer's MAC address, on Ethernet.
    pub(super) mac: [u8; 6],
    /// Bytes of a packet.
    pub(super) mtu: u32,
}

fn filled(bytes: usize, opcode: Opcode, fields: &[(Field, u64)]) -> Vec<u8> {
    let mut command = vec![0; bytes];
    OPCODE.set(&mut command, opcode as u64);
    for (field, value) in fields {
        field.set(&mut command, *value);
    }
    command
}

/// Asks for the device's capabilities that are in force.
pub(super) fn capabilities() -> Vec<u8> {
    let page = u64::from(query_hca_cap::page::GENERAL) << 1 | 1;
    filled(SHORT, Opcode::QueryHcaCap, &[(OP_MOD, page)])
}

/// A command about one object, of nothing but its number.
pub(super) fn short(opcode: Opcode, number: u32) -> Vec<u8> {
    filled(SHORT, opcode, &[(NUMBER, number.into())])
}

pub(super) fn create_cq(spec: &CqSpec) -> Vec<u8> {
    let at = |field: Field| field.within(create_cq::CQC);
    filled(
        create_cq::IN,
        Opcode::CreateCq,
        &[
            (create_cq::CQ_UMEM_VALID, 1),
            (create_cq::CQ_UMEM_ID, spec.entries.umem.into()),
            (create_cq::CQ_UMEM_OFFSET, spec.entries.offset),
            (at(cqc::DBR_UMEM_VALID), 1),
            (at(cqc::DBR_UMEM_ID), spec.record.umem.into()),
            (at(cqc::DBR_ADDR), spec.record.offset),
            (at(cqc::LOG_CQ_SIZE), spec.log_size.into()),
            (at(cqc::CC), u64::from(spec.kind == CqKind::Collapsed)),
            (at(cqc::OI), u64::from(spec.kind != CqKind::Ring)),
            (at(cqc::UAR_PAGE), spec.page.into()),
            (at(cqc::C_EQN), spec.eqn.into()),
        ],
    )
}

pub(super) fn create_qp(spec: &QpSpec) -> Vec<u8> {
    let at = |field: Field| field.within(create_qp::QPC);
    let service = match spec.transport {
        Transport::Rc => qpc::service::RC,
        Transport::Dci => qpc::service::DCI,
    };
    let kind = if spec.log_receives.is_some() { qpc::rq_type::REGULAR } else { qpc::rq_type::NONE };
    filled(
        create_qp::IN,
        Opcode::CreateQp,
        &[
            (create_qp::WQ_UMEM_VALID, 1),
            (create_qp::WQ_UMEM_ID, spec.queues.umem.into()),
            (create_qp::WQ_UMEM_OFFSET, spec.queues.offset),
            (at(qpc::ST), service.into()),
            (at(qpc::PM_STATE), qpc::MIGRATED.into()),
            (at(qpc::PD), spec.pdn.into()),
            (at(qpc::RQ_TYPE), kind.into()),
            // One data segment of 16 bytes each: a stride of 2^0 segments.
            (at(qpc::LOG_RQ_SIZE), spec.log_receives.unwrap_or(0).into()),
            (at(qpc::LOG_SQ_SIZE), spec.log_blocks.into()),
            (at(qpc::UAR_PAGE), spec.page.into()),
            (at(qpc::CQN_SND), spec.send_cqn.into()),
            (at(qpc::CQN_RCV), spec.recv_cqn.into()),
            (at(qpc::DBR_UMEM_VALID), 1),
            (at(qpc::DBR_UMEM_ID), spec.record.umem.into()),
            (at(qpc::DBR_ADDR), spec.record.offset),
        ],
    )
}

fn access_fields(access: Access) -> [(Field, u64); 4] {
    let allows = |flag| u64::from(access.contains(flag));
    let atomics = allows(Access::REMOTE_ATOMIC);
    [
        (qpc::RRE, allows(Access::REMOTE_READ)),
        (qpc::RWE, allows(Access::REMOTE_WRITE)),
        (qpc::RAE, atomics),
        (qpc::ATOMIC_MODE, atomics * u64::from(qpc::ATOMIC_64)),
    ]
}

pub(super) fn create_dct(spec: &DctSpec) -> Vec<u8> {
    let allows = |flag| u64::from(spec.access.contains(flag));
    let atomics = allows(Access::REMOTE_ATOMIC);
    let fields = [
        (dctc::PD, spec.pdn.into()),
        (dctc::CQN, spec.cqn.into()),
        (dctc::SRQN, spec.srqn.into()),
        (dctc::DC_ACCESS_KEY, spec.key),
        (dctc::RRE, allows(Access::REMOTE_READ)),
        (dctc::RWE, allows(Access::REMOTE_WRITE)),
        (dctc::RAE, atomics),
        (dctc::ATOMIC_MODE, atomics * u64::from(qpc::ATOMIC_64)),
        (dctc::MIN_RNR_NAK, MIN_RNR_TIMER),
        (dctc::PORT, spec.port.into()),
        (dctc::MTU, mtu_code(spec.mtu)),
        (dctc::MY_ADDR_INDEX, spec.gid_index.into()),
        (dctc::HOP_LIMIT, HOPS),
    ];
    let fields = fields.map(|(field, value)| (field.within(create_dct::DCTC), value));
    filled(create_dct::IN, Opcode::CreateDct, &fields)
}

/// Code of the wait that an RNR NAK asks for: 10 us.
const MIN_RNR_TIMER: u64 = 1;
/// Hops of a global route.
const HOPS: u64 = 64;
/// log2 of the longest message.
const LOG_MESSAGE: u64 = 30;

/// A path MTU's code: 1 is 256 bytes, 5 is 4096.
fn mtu_code(bytes: u32) -> u64 {
    u64::from(bytes.clamp(256, 4096).ilog2()) - 7
}

fn modify(opcode: Opcode, qpn: u32, fields: &[(Field, u64)]) -> Vec<u8> {
    let mut command = filled(modify_qp::IN, opcode, &[(NUMBER, qpn.into())]);
    for (field, value) in fields {
        field.within(modify_qp::QPC).set(&mut command, *value);
    }
    command
}

const fn path(field: Field) -> Field {
    field.within(qpc::PRIMARY_PATH)
}

/// The commands that take a queue pair to where it sends, with their names. A DCI's peers are named by what it sends.
pub(super) fn connect(
    qpn: u32,
    transport: Transport,
    remote_qpn: u32,
    way: &Path,
    attr: &ConnectAttr,
) -> [(Opcode, Vec<u8>); 3] {
    let mut init =
        vec![(qpc::PM_STATE, qpc::MIGRATED.into()), (path(ads::VHCA_PORT_NUM), way.port.into())];
    let mut rtr = vec![(qpc::MTU, mtu_code(way.mtu)), (qpc::LOG_MSG_MAX, LOG_MESSAGE)];
    if transport == Transport::Rc {
        init.extend(access_fields(attr.access));
        rtr.extend([
            (qpc::REMOTE_QPN, remote_qpn.into()),
            (qpc::LOG_RRA_MAX, way.log_reads.into()),
            (qpc::MIN_RNR_NAK, MIN_RNR_TIMER),
            (qpc::NEXT_RCV_PSN, attr.rq_psn.into()),
        ]);
        rtr.extend(path_fields(way));
    }
    let rts = [
        (qpc::LOG_SRA_MAX, way.log_reads.into()),
        (qpc::RETRY_COUNT, attr.retry_cnt.into()),
        (qpc::RNR_RETRY, attr.rnr_retry.into()),
        (qpc::NEXT_SEND_PSN, attr.sq_psn.into()),
        (path(ads::ACK_TIMEOUT), attr.timeout.into()),
    ];
    [(Opcode::Rst2InitQp, &init[..]), (Opcode::Init2RtrQp, &rtr), (Opcode::Rtr2RtsQp, &rts)]
        .map(|(opcode, fields)| (opcode, modify(opcode, qpn, fields)))
}

fn path_fields(way: &Path) -> Vec<(Field, u64)> {
    let mut fields = vec![(path(ads::RLID), way.peer.lid.into())];
    if !way.is_global {
        return fields;
    }
    let gid = u128::from_be_bytes(way.peer.gid);
    let [a, b, c, d, e, f] = way.mac;
    fields.extend([
        // On Ethernet the route is always there, and the bit has no meaning.
        (path(ads::GRH), u64::from(way.peer.lid != 0)),
        (path(ads::SRC_ADDR_INDEX), way.gid_index.into()),
        (path(ads::HOP_LIMIT), HOPS),
        (path(ads::RGID_HIGH), (gid >> 64) as u64),
        (path(ads::RGID_LOW), gid as u64),
        (path(ads::UDP_SPORT), 0xc000),
        (path(ads::RMAC_HIGH), u16::from_be_bytes([a, b]).into()),
        (path(ads::RMAC_LOW), u32::from_be_bytes([c, d, e, f]).into()),
    ]);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(peer: Address) -> Path {
        let (mac, is_global) = ([1, 2, 3, 4, 5, 6], peer.is_global());
        Path { port: 1, gid_index: 3, peer, is_global, log_reads: 4, mac, mtu: 1024 }
    }

    #[test]
    fn a_queue_pair_says_where_its_queues_lie() {
        let [queues, record] = [(7, 0), (8, 64)].map(|(umem, offset)| Part { umem, offset });
        let spec = QpSpec {
            transport: Transport::Rc,
            pdn: 5,
            queues,
            record,
            log_blocks: 10,
            log_receives: Some(4),
            page: 2,
            send_cqn: 0x100,
            recv_cqn: 0x200,
        };
        let command = create_qp(&spec);
        let of = |field: Field| field.within(create_qp::QPC).get(&command);
        assert_eq!((of(qpc::RQ_TYPE), of(qpc::LOG_RQ_SIZE), of(qpc::LOG_RQ_STRIDE)), (0, 4, 0));
        assert_eq!((of(qpc::DBR_UMEM_ID), of(qpc::DBR_ADDR)), (8, 64));
        assert_eq!(create_qp::WQ_UMEM_ID.get(&command), 7);
        let bare = create_qp(&QpSpec { log_receives: None, transport: Transport::Dci, ..spec });
        let of = |field: Field| field.within(create_qp::QPC).get(&bare);
        assert_eq!((of(qpc::RQ_TYPE), of(qpc::ST)), (3, 5));
    }

    #[test]
    fn the_kinds_of_cq_differ_in_two_bits() {
        let part = Part { umem: 1, offset: 0 };
        for (kind, cc, oi) in
            [(CqKind::Ring, 0, 0), (CqKind::OverrunRing, 0, 1), (CqKind::Collapsed, 1, 1)]
        {
            let spec = CqSpec { entries: part, record: part, log_size: 4, kind, page: 1, eqn: 1 };
            let command = create_cq(&spec);
            let of = |field: Field| field.within(create_cq::CQC).get(&command);
            assert_eq!((of(cqc::CC), of(cqc::OI)), (cc, oi), "{kind:?}");
        }
    }

    #[test]
    fn a_path_is_a_lid_or_a_gid_with_a_mac() {
        let gid = std::net::Ipv4Addr::new(192, 168, 130, 1).to_ipv6_mapped().octets();
        let attr = ConnectAttr::default();
        // The last subnet wants a global route in every packet.
        for (peer, always, [lid, grh, index, mac]) in [
            (Address { lid: 9, gid, mtu: 0 }, false, [9, 0, 0, 0]),
            (Address { lid: 0, gid, mtu: 0 }, false, [0, 0, 3, 0x0102]),
            (Address { lid: 9, gid, mtu: 0 }, true, [9, 1, 3, 0x0102]),
        ] {
            let way = way(peer);
            let way = Path { is_global: way.is_global || always, ..way };
            let [init, rtr, rts] = connect(0x42, Transport::Rc, 0x43, &way, &attr);
            let of = |(_, command): &(Opcode, Vec<u8>), field: Field| {
                field.within(modify_qp::QPC).get(command)
            };
            assert_eq!(init.0, Opcode::Rst2InitQp);
            assert_eq!((of(&init, qpc::RAE), of(&init, qpc::ATOMIC_MODE)), (1, 3));
            assert_eq!((of(&rtr, path(ads::RLID)), of(&rtr, path(ads::GRH))), (lid, grh));
            assert_eq!(of(&rtr, path(ads::SRC_ADDR_INDEX)), index);
            assert_eq!(of(&rtr, path(ads::RMAC_HIGH)), mac);
            assert_eq!((of(&rtr, qpc::MTU), of(&rtr, qpc::REMOTE_QPN)), (3, 0x43));
            assert_eq!(of(&rts, path(ads::ACK_TIMEOUT)), 14);
            assert_eq!(NUMBER.get(&rts.1), 0x42);
        }
    }

    #[test]
    fn mtus_have_codes() {
        for (bytes, code) in [(0, 1), (256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
            assert_eq!(mtu_code(bytes), code);
        }
    }
}
