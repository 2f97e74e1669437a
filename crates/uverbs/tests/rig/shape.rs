//! Each call as a client sends it that makes no mistake, about what it made.

use wire::devx::{Opcode, SHORT, create_cq, create_qp, qpc, query_cq, query_hca_cap};

use super::devx::{Names, cq_command, dct_command, qp, qp_command, short, step_command};
use super::program::{PAYLOAD, PAYLOAD_LEN, Party, QUEUES, QUEUES_LEN, RECORD, Tape};
use super::*;

/// What a handle leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pd,
    Mr,
    Cq,
    Qp,
    Srq,
    Xrcd,
    Ah,
    Uar,
    Umem,
    DevxPd,
    DevxCq,
    DevxQp,
    DevxDct,
}

/// A command by `write`: the core's and the driver's bytes, and the room for the answers of both.
#[derive(Debug, Default)]
pub struct Shape {
    pub core: Vec<u8>,
    pub driver: Vec<u8>,
    pub core_room: usize,
    pub driver_room: usize,
}

fn shape(body: Vec<u8>, core: usize, core_room: usize, driver_room: usize) -> Shape {
    let mut core_bytes = body;
    let driver = core_bytes.split_off(core);
    Shape { core: core_bytes, driver, core_room, driver_room }
}

/// Numbers of 32 bits at their places, in a body of `len` bytes.
fn body(len: usize, values: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, value) in values {
        put(&mut bytes, *at, &value.to_ne_bytes());
    }
    bytes
}

/// `enum ib_qp_type`, with flags of mlx5's part: RC, UC, UD, extended connections, and both ends of dynamic ones.
const KINDS: [(u8, u32); 7] = [(2, 0), (2, 0), (3, 0), (4, 0), (9, 0), (10, 0), (0xff, 1 << 5)];
const DCT: (u8, u32) = (0xff, 1 << 4);

fn queue_pair(party: &mut Party, tape: &mut Tape<'_>) -> (Vec<u8>, (u8, u32)) {
    let (pd, cq) = (party.pick(Kind::Pd, tape), party.pick(Kind::Cq, tape));
    let page = party.pick(Kind::Uar, tape);
    let at = tape.place();
    party.place = at;
    let mut body = qp_body(pd.handle, cq.handle, page.number, at, at + RECORD);
    let kind = [&KINDS[..], &[DCT]].concat()[tape.below(KINDS.len() + 1)];
    body[53] = kind.0;
    put(&mut body, 84, &(1u32 << 10 | kind.1).to_ne_bytes());
    if tape.byte() & 3 == 3 || kind == DCT {
        let srq = party.pick(Kind::Srq, tape);
        put(&mut body, 28, &srq.handle.to_ne_bytes());
        body[54] = 1;
    }
    if kind.0 == 10 {
        put(&mut body, 16, &party.pick(Kind::Xrcd, tape).handle.to_ne_bytes());
    }
    (body, kind)
}

/// The attributes that lead a pair of a kind to the next state; states are tried in turn.
fn next_state(party: &Party, tape: &mut Tape<'_>) -> Vec<u8> {
    let (qp, peer) = (party.pick(Kind::Qp, tape), party.pick(Kind::Qp, tape));
    let state = tape.below(5);
    let masks: &[u32] = match state {
        0 => &[1],
        // Reliable, datagrams, initiators of dynamic connections.
        1 => &[STEPS[0], 0x71, 0x31],
        // Reliable, unreliable, datagrams, targets, initiators of either sort.
        2 => &[STEPS[1], 0x10_1181, 1, 0x8181, 0x101, 0x10_1181],
        3 => &[STEPS[2], 0x1_0001, 0x200 | 0x1_0001],
        _ => &[1],
    };
    let mask = masks[tape.below(masks.len())];
    let state = if state == 4 { 4 + tape.byte() % 3 } else { state as u8 };
    let mut body = modify_body(qp.handle, mask, state, peer.number);
    // On Ethernet, by GID: its own.
    body[28] = tape.byte() & 1;
    body[26] = tape.byte() & 3;
    body
}

fn cq(party: &mut Party, tape: &mut Tape<'_>) -> Vec<u8> {
    party.place = tape.place();
    let channel = if tape.byte() & 1 == 0 { -1 } else { party.fd(tape) };
    let mut body = cq_body(15, party.place, channel);
    put(&mut body, 40, &(party.place + RECORD).to_ne_bytes());
    body
}

/// A shared receive queue; one of extended connections is of type 1.
fn srq(party: &mut Party, tape: &mut Tape<'_>) -> Vec<u8> {
    party.place = tape.place();
    let mut body = srq_body(party.pick(Kind::Pd, tape).handle, party.place);
    put(&mut body, 28, &u32::from(tape.byte() & 15).to_ne_bytes());
    put(&mut body, 40, &(party.place + RECORD).to_ne_bytes());
    body
}

/// A command that is right.
pub fn command(name: &str, party: &mut Party, tape: &mut Tape<'_>) -> Shape {
    let mut one = |kind| party.pick(kind, tape).handle;
    let plain = |handle: u32| shape(body(4, &[(0, handle)]), 4, 0, 0);
    match name {
        "GET_CONTEXT" => {
            let mut driver = ucontext(2);
            driver[8] = 1;
            shape([&[0; 8], &driver[..]].concat(), 8, 8, 72)
        }
        "QUERY_DEVICE" => shape(vec![0; 8], 8, 176, 0),
        "QUERY_DEVICE_EX" => shape(vec![0; 8], 8, 304, 104),
        "QUERY_PORT" => shape(body(16, &[(8, 1)]), 16, 40, 0),
        "ALLOC_PD" => shape(vec![0; 8], 8, 4, 4),
        "DEALLOC_PD" => plain(one(Kind::Pd)),
        "REG_MR" => {
            let pd = one(Kind::Pd);
            shape(mr_body(pd, PAYLOAD, PAYLOAD_LEN, PAYLOAD, 0xf), 40, 12, 0)
        }
        "REREG_MR" => {
            let mut bytes = body(48, &[(8, one(Kind::Mr)), (40, one(Kind::Pd)), (44, 0xf)]);
            put(&mut bytes, 12, &u32::from(1 + tape.byte() % 7).to_ne_bytes());
            for at in [16, 32] {
                put(&mut bytes, at, &(PAYLOAD + 4096).to_ne_bytes());
            }
            put(&mut bytes, 24, &4096u64.to_ne_bytes());
            shape(bytes, 48, 8, 0)
        }
        "DEREG_MR" => plain(one(Kind::Mr)),
        "CREATE_COMP_CHANNEL" => shape(vec![0; 8], 8, 4, 0),
        "CREATE_CQ" => shape(cq(party, tape), 32, 8, 8),
        "CREATE_CQ_EX" => {
            let plain = cq(party, tape);
            // No address for an answer in front, and flags behind.
            let core = [&plain[8..28], &[0; 4], &[tape.byte() & 3, 0, 0, 0], &[0; 4]].concat();
            shape([&core, &plain[32..]].concat(), 32, 16, 8)
        }
        "RESIZE_CQ" => {
            let mut bytes = body(32, &[(8, one(Kind::Cq)), (12, 7)]);
            put(&mut bytes, 16, &tape.place().to_ne_bytes());
            put(&mut bytes, 24, &64u16.to_ne_bytes());
            shape(bytes, 16, 8, 0)
        }
        "DESTROY_CQ" => shape(body(16, &[(8, one(Kind::Cq))]), 16, 8, 0),
        "CREATE_QP" => shape(queue_pair(party, tape).0, 56, 32, 40),
        "QUERY_QP" => shape(body(16, &[(8, one(Kind::Qp))]), 16, 128, 0),
        "MODIFY_QP" => shape(next_state(party, tape), 112, 0, 0),
        "MODIFY_QP_EX" => shape(next_state(party, tape), 112, 8, 16),
        "DESTROY_QP" => shape(body(16, &[(8, one(Kind::Qp))]), 16, 4, 0),
        "CREATE_SRQ" => shape(srq(party, tape), 32, 16, 8),
        "CREATE_XSRQ" => {
            let plain = srq(party, tape);
            let (xrcd, cq) = (party.pick(Kind::Xrcd, tape), party.pick(Kind::Cq, tape));
            let kind = u32::from(tape.byte() & 1 ^ 1);
            let ends = body(12, &[(4, xrcd.handle), (8, cq.handle)]);
            let core = [&plain[..16], &kind.to_ne_bytes(), &plain[16..32], &ends].concat();
            shape([&core, &plain[32..]].concat(), 48, 16, 8)
        }
        "MODIFY_SRQ" => {
            let limit = u32::from(tape.byte() & 15);
            shape(
                body(16, &[(0, party.pick(Kind::Srq, tape).handle), (4, 2), (12, limit)]),
                16,
                0,
                0,
            )
        }
        "QUERY_SRQ" => shape(body(16, &[(8, one(Kind::Srq))]), 16, 16, 0),
        "DESTROY_SRQ" => shape(body(16, &[(8, one(Kind::Srq))]), 16, 4, 0),
        "OPEN_XRCD" => {
            let fd = if tape.byte() & 1 == 0 { -1 } else { party.fd(tape) };
            shape(body(16, &[(8, fd as u32), (12, libc::O_CREAT as u32)]), 16, 4, 0)
        }
        "CLOSE_XRCD" => plain(one(Kind::Xrcd)),
        "CREATE_AH" => {
            let mut bytes = body(56, &[(16, one(Kind::Pd))]);
            bytes[53] = 1;
            bytes[54] = 1;
            shape(bytes, 56, 4, 16)
        }
        "DESTROY_AH" => plain(one(Kind::Ah)),
        other => panic!("the command {other} has no shape here"),
    }
}

fn names(party: &Party, tape: &mut Tape<'_>) -> Names {
    Names {
        umem: party.pick(Kind::Umem, tape).number,
        page: party.pick(Kind::Uar, tape).number,
        pd: party.pick([Kind::Pd, Kind::DevxPd][tape.below(2)], tape).number,
        eqn: 1,
    }
}

fn create_command(party: &mut Party, tape: &mut Tape<'_>) -> Vec<u8> {
    let (names, at) = (names(party, tape), tape.place());
    party.place = at;
    let cqn = party.pick([Kind::DevxCq, Kind::Cq][tape.below(2)], tape).number;
    let (offset, record) = (at - QUEUES, at - QUEUES + RECORD);
    match tape.below(4) {
        0 => cq_command(&names, offset, record),
        1 => {
            let mut command = qp_command(&names, cqn, offset, record);
            let srq = party.pick(Kind::Srq, tape).number;
            if tape.byte() & 3 == 3 {
                qp(qpc::RQ_TYPE).set(&mut command, qpc::rq_type::SHARED.into());
                qp(qpc::SRQN).set(&mut command, srq.into());
            }
            command
        }
        2 => dct_command(&names, cqn),
        _ => short(Opcode::AllocPd, 0),
    }
}

fn about(party: &Party, tape: &mut Tape<'_>) -> (u32, u32, Kind) {
    let kind = [Kind::DevxQp, Kind::DevxCq, Kind::DevxDct, Kind::DevxPd][tape.below(4)];
    let made = party.pick(kind, tape);
    (made.handle, made.number, kind)
}

/// The attributes of a method, as they should be.
pub fn attrs(name: &str, party: &mut Party, tape: &mut Tape<'_>) -> Vec<Attr> {
    use Attr::{Bytes, Handle, Number, Out};
    const UHW_IN: u16 = DRIVER;
    const UHW_OUT: u16 = DRIVER + 1;
    let mut one = |kind| party.pick(kind, tape).handle;
    match name {
        "INVOKE_WRITE" => {
            let plain: Vec<_> = uverbs::COMMANDS.iter().filter(|c| c.number < 1 << 31).collect();
            let known = plain[tape.below(plain.len())];
            let Shape { core, driver, core_room, driver_room } = command(known.name, party, tape);
            vec![
                Number(2, 8, known.number.into()),
                Bytes(0, core),
                Out(1, core_room as u16),
                Bytes(UHW_IN, driver),
                Out(UHW_OUT, driver_room as u16),
            ]
        }
        "QUERY_PORT" => vec![Number(0, 4, 1), Out(1, 40)],
        "GET_CONTEXT" => {
            let mut driver = ucontext(2);
            driver[8] = tape.byte() & 1;
            vec![Out(0, 4), Out(1, 8), Bytes(UHW_IN, driver.to_vec()), Out(UHW_OUT, 72)]
        }
        "QUERY_GID_TABLE" => vec![Number(0, 8, 32), Number(1, 8, 0), Out(2, 512), Out(3, 8)],
        "QUERY_GID_ENTRY" => {
            vec![Number(0, 4, 1), Number(1, 4, 0), Number(2, 4, 0), Out(3, 32)]
        }
        "ASYNC_EVENT_ALLOC" => vec![Handle(0, 0)],
        "PD_DESTROY" => vec![Handle(0, one(Kind::Pd))],
        "MR_DESTROY" => vec![Handle(0, one(Kind::Mr))],
        "QUERY_MR" => {
            vec![Handle(0, one(Kind::Mr)), Out(1, 4), Out(2, 4), Out(3, 8), Out(4, 8)]
        }
        "REG_DMABUF_MR" => {
            vec![Handle(1, one(Kind::Pd)), Number(5, 8, 0), Number(6, 4, 1), Out(7, 4), Out(8, 4)]
        }
        "CQ_CREATE" => {
            let plain = cq(party, tape);
            let mut attrs = vec![
                Handle(0, 0),
                Number(1, 4, 15),
                Number(2, 8, 0xc0ffee),
                Number(4, 4, 0),
                Number(5, 4, (tape.byte() & 3).into()),
                Out(6, 4),
                Bytes(UHW_IN, plain[32..].to_vec()),
                Out(UHW_OUT, 8),
            ];
            if tape.byte() & 1 == 1 {
                attrs.push(Number([3, 7][tape.below(2)], 8, party.fd(tape) as u64));
            }
            attrs
        }
        "CQ_DESTROY" => vec![Handle(0, one(Kind::Cq)), Out(1, 8)],
        "QP_CREATE" => {
            let (body, (kind, _)) = queue_pair(party, tape);
            let mut attrs = vec![
                Handle(0, 0),
                Number(7, 8, 0xdead),
                Bytes(8, body[32..52].to_vec()),
                Number(9, 1, kind.into()),
                Out(13, 20),
                Out(14, 4),
                Bytes(UHW_IN, body[56..].to_vec()),
                Out(UHW_OUT, 40),
            ];
            if kind == 10 {
                attrs.push(Handle(1, u32_at(&body, 16)));
            } else {
                attrs.extend([
                    Handle(2, u32_at(&body, 16)),
                    Handle(4, u32_at(&body, 20)),
                    Handle(5, u32_at(&body, 24)),
                ]);
            }
            if body[54] == 1 {
                attrs.push(Handle(3, u32_at(&body, 28)));
            }
            attrs
        }
        "QP_DESTROY" => vec![Handle(0, one(Kind::Qp)), Out(1, 4)],
        "SRQ_CREATE" => {
            let plain = srq(party, tape);
            let is_extended = tape.byte() & 1 == 1;
            let mut attrs = vec![
                Handle(0, 0),
                Handle(1, u32_at(&plain, 16)),
                Number(4, 8, 0xbeef),
                Number(5, 4, 15),
                Number(6, 4, 3),
                Number(7, 4, u32_at(&plain, 28).into()),
                Number(9, 4, is_extended.into()),
                Out(11, 4),
                Out(12, 4),
                Out(13, 4),
                Bytes(UHW_IN, plain[32..].to_vec()),
                Out(UHW_OUT, 8),
            ];
            if is_extended {
                attrs.push(Handle(2, party.pick(Kind::Xrcd, tape).handle));
                attrs.push(Handle(3, party.pick(Kind::Cq, tape).handle));
            }
            attrs
        }
        "SRQ_DESTROY" => vec![Handle(0, one(Kind::Srq)), Out(1, 4)],
        "XRCD_DESTROY" => vec![Handle(0, one(Kind::Xrcd))],
        "AH_DESTROY" => vec![Handle(0, one(Kind::Ah))],
        "UAR_OBJ_ALLOC" => vec![
            Handle(DRIVER, 0),
            Number(DRIVER + 1, 8, (tape.byte() & 1).into()),
            Out(DRIVER + 2, 8),
            Out(DRIVER + 3, 4),
            Out(DRIVER + 4, 4),
        ],
        "UAR_OBJ_DESTROY" => vec![Handle(DRIVER, one(Kind::Uar))],
        "DEVX_OTHER" => {
            let opcodes = [
                (Opcode::QueryHcaCap, 1),
                (Opcode::QueryNicVportContext, 0),
                (Opcode::QueryHcaVportContext, 0),
                (Opcode::QueryRoceAddress, 0),
                (Opcode::QueryIssi, 0),
            ];
            let (opcode, op_mod) = opcodes[tape.below(opcodes.len())];
            let mut command = short(opcode, 0);
            wire::devx::OP_MOD.set(&mut command, op_mod);
            vec![Bytes(DRIVER, command), Out(DRIVER + 1, query_hca_cap::OUT as u16)]
        }
        "DEVX_QUERY_UAR" => {
            vec![Number(DRIVER, 4, party.pick(Kind::Uar, tape).number.into()), Out(DRIVER + 1, 4)]
        }
        "DEVX_QUERY_EQN" => vec![Number(DRIVER, 4, 0), Out(DRIVER + 1, 4)],
        "DEVX_OBJ_CREATE" => vec![
            Handle(DRIVER, 0),
            Bytes(DRIVER + 1, create_command(party, tape)),
            Out(DRIVER + 2, SHORT as u16),
        ],
        "DEVX_OBJ_DESTROY" => vec![Handle(DRIVER, about(party, tape).0)],
        "DEVX_OBJ_MODIFY" => {
            let (qp, peer) = (party.pick(Kind::DevxQp, tape), party.pick(Kind::DevxQp, tape));
            let command = match tape.below(5) {
                step @ 0..3 => step_command(step, qp.number, peer.number),
                3 => short(Opcode::Qp2Rst, qp.number),
                _ => short(Opcode::Qp2Err, qp.number),
            };
            vec![Handle(DRIVER, qp.handle), Bytes(DRIVER + 1, command), Out(DRIVER + 2, 16)]
        }
        "DEVX_OBJ_QUERY" => {
            let (handle, number, kind) = about(party, tape);
            let opcode = match kind {
                Kind::DevxCq => Opcode::QueryCq,
                Kind::DevxDct => Opcode::QueryDct,
                _ => Opcode::QueryQp,
            };
            let room = query_cq::OUT.max(create_cq::IN).max(create_qp::IN) as u16;
            let command = short(opcode, number);
            vec![Handle(DRIVER, handle), Bytes(DRIVER + 1, command), Out(DRIVER + 2, room)]
        }
        "DEVX_UMEM_REG" => vec![
            Handle(DRIVER, 0),
            Number(DRIVER + 1, 8, QUEUES),
            Number(DRIVER + 2, 8, QUEUES_LEN),
            Number(DRIVER + 3, 4, 1),
            Out(DRIVER + 4, 4),
        ],
        "DEVX_UMEM_DEREG" => vec![Handle(DRIVER, one(Kind::Umem))],
        "DEVX_SUBSCRIBE_EVENT"
        | "DEVX_OBJ_ASYNC_QUERY"
        | "DEVX_ASYNC_CMD_FD_ALLOC"
        | "DEVX_ASYNC_EVENT_FD_ALLOC" => vec![Handle(DRIVER, 0)],
        other => panic!("the method {other} has no shape here"),
    }
}
