//! A client that sends commands of the device's own format, and the bytes of these.

use uverbs::{ClientMemory, Errno, Host, LinkLayer, Mappable};
use wire::cqe::Cqe;
use wire::devx::{
    Field, NUMBER, OP_MOD, OPCODE, Opcode, SHORT, STATUS, SYNDROME, ads, cqc, create_cq,
    create_dct, create_qp, dctc, modify_qp, qpc,
};
use wire::doorbell::{Doorbell, UAR_SEND, record};
use wire::wqe::Ctrl;
use zerocopy::{FromBytes, IntoBytes};

use crate::rig::*;

pub const DEVX: u16 = DRIVER;
pub const OBJ: u16 = DRIVER + 1;
pub const UMEM: u16 = DRIVER + 2;

/// One umem holds all queues: where in it.
pub const QUEUES: u64 = BASE;
pub const QUEUES_LEN: u64 = 0x4000;
pub const CQ_AT: u64 = 0x1000;
pub const RECORDS: u64 = 0x2000;
pub const PAYLOAD: u64 = BASE + 0x1_0000;

/// A client and what its objects are made of.
pub struct Side {
    pub host: Host,
    pub client: Client,
    pub page: Mappable,
    pub page_number: u32,
    pub pd: u32,
    pub pdn: u32,
    pub umem: u32,
    pub umem_handle: u32,
    pub eqn: u32,
    pub lkey: u32,
    pub rkey: u32,
}

pub fn umem_attrs(address: u64, len: u64, access: u64) -> Vec<Attr> {
    vec![
        Attr::Handle(DRIVER, 0),
        Attr::Number(DRIVER + 1, 8, address),
        Attr::Number(DRIVER + 2, 8, len),
        Attr::Number(DRIVER + 3, 4, access),
        Attr::Out(DRIVER + 4, 4),
    ]
}

/// Handle and number of registered memory.
pub fn umem(client: &mut Client, address: u64, len: u64, access: u64) -> Result<(u32, u32), Errno> {
    let (words, outputs) = client.method(UMEM, DRIVER, &umem_attrs(address, len, access))?;
    Ok((words[0] as u32, u32_at(&outputs[0], 0)))
}

impl Side {
    pub fn new(link_layer: LinkLayer) -> Self {
        Self::of(host(link_layer))
    }

    pub fn of(host: Host) -> Self {
        let mut client = Client::new(&host);
        let mut asked = ucontext(2);
        asked[8] = 1;
        client.write(0, &[&[0; 8], &asked[..]].concat(), 8 + 72).unwrap();
        let made = client.write(3, &[0; 8], 8).unwrap();
        let (_, page_number) = client.uar();
        let page = client.context.mmap(u64::from(page_number) << 12, 4096).unwrap();
        let pd = u32_at(&made, 0);
        let mr = client.write(9, &mr_body(pd, PAYLOAD, 0x1000, PAYLOAD, 0xf), 12).unwrap();
        let (umem_handle, umem) = umem(&mut client, QUEUES, QUEUES_LEN, 1).unwrap();
        let attrs = [Attr::Number(DRIVER, 4, 0), Attr::Out(DRIVER + 1, 4)];
        let (_, outputs) = client.method(DEVX, DRIVER + 2, &attrs).unwrap();
        let (lkey, rkey) = (u32_at(&mr, 4), u32_at(&mr, 8));
        let eqn = u32_at(&outputs[0], 0);
        let pdn = u32_at(&made, 4);
        Self { host, client, page, page_number, pd, pdn, umem, umem_handle, eqn, lkey, rkey }
    }

    /// A command by a method of an object: its answer, or error number, status and syndrome.
    pub fn send(
        &mut self,
        (object, method): (u16, u16),
        handle: Option<u32>,
        command: &[u8],
        room: usize,
    ) -> Result<(u32, Vec<u8>), (Errno, u8, u32)> {
        let mut attrs = Vec::new();
        let first = match handle {
            Some(handle) => {
                attrs.push(Attr::Handle(DRIVER, handle));
                DRIVER + 1
            }
            None => DRIVER,
        };
        attrs.push(Attr::Bytes(first, command.to_vec()));
        attrs.push(Attr::Out(first + 1, room as u16));
        match self.client.method(object, method, &attrs) {
            Ok((words, mut outputs)) => Ok((words[0] as u32, outputs.remove(0))),
            Err(errno) => {
                let mut answer = [0; 16];
                self.client.memory.read(ANSWER, &mut answer).unwrap();
                Err((errno, STATUS.get(&answer) as u8, SYNDROME.get32(&answer)))
            }
        }
    }

    pub fn general(&mut self, opcode: Opcode, op_mod: u64, room: usize) -> Result<Vec<u8>, Errno> {
        let mut command = short(opcode, 0);
        OP_MOD.set(&mut command, op_mod);
        self.send((DEVX, DRIVER), None, &command, room)
            .map(|(_, answer)| answer)
            .map_err(|(errno, ..)| errno)
    }

    pub fn create(&mut self, command: &[u8]) -> Result<(u32, u32), (Errno, u8, u32)> {
        let (handle, answer) = self.send((OBJ, DRIVER), Some(0), command, SHORT)?;
        Ok((handle, NUMBER.get32(&answer)))
    }

    pub fn modify(&mut self, handle: u32, command: &[u8]) -> Result<(), (Errno, u8, u32)> {
        self.send((OBJ, DRIVER + 2), Some(handle), command, SHORT).map(drop)
    }

    pub fn query(&mut self, handle: u32, opcode: Opcode, number: u32, room: usize) -> Vec<u8> {
        self.send((OBJ, DRIVER + 3), Some(handle), &short(opcode, number), room).unwrap().1
    }

    pub fn destroy(&mut self, handle: u32) -> Result<(), Errno> {
        self.client.method(OBJ, DRIVER + 1, &[Attr::Handle(DRIVER, handle)]).map(drop)
    }

    pub fn cq_command(&self) -> Vec<u8> {
        let mut command = vec![0; create_cq::IN];
        OPCODE.set(&mut command, Opcode::CreateCq as u64);
        for (field, value) in [
            (create_cq::CQ_UMEM_ID, u64::from(self.umem)),
            (create_cq::CQ_UMEM_VALID, 1),
            (create_cq::CQ_UMEM_OFFSET, CQ_AT),
            (cq(cqc::DBR_UMEM_VALID), 1),
            (cq(cqc::DBR_UMEM_ID), u64::from(self.umem)),
            (cq(cqc::DBR_ADDR), RECORDS),
            (cq(cqc::LOG_CQ_SIZE), 4),
            (cq(cqc::UAR_PAGE), u64::from(self.page_number)),
            (cq(cqc::C_EQN), u64::from(self.eqn)),
        ] {
            field.set(&mut command, value);
        }
        command
    }

    /// 16 blocks of sends behind 4 receives.
    pub fn qp_command(&self, cqn: u32) -> Vec<u8> {
        let mut command = vec![0; create_qp::IN];
        OPCODE.set(&mut command, Opcode::CreateQp as u64);
        for (field, value) in [
            (create_qp::WQ_UMEM_ID, u64::from(self.umem)),
            (create_qp::WQ_UMEM_VALID, 1),
            (qp(qpc::PM_STATE), 3),
            (qp(qpc::PD), u64::from(self.pdn)),
            (qp(qpc::LOG_RQ_SIZE), 2),
            (qp(qpc::LOG_SQ_SIZE), 4),
            (qp(qpc::UAR_PAGE), u64::from(self.page_number)),
            (qp(qpc::USER_INDEX), 7),
            (qp(qpc::CQN_SND), u64::from(cqn)),
            (qp(qpc::CQN_RCV), u64::from(cqn)),
            (qp(qpc::DBR_UMEM_VALID), 1),
            (qp(qpc::DBR_UMEM_ID), u64::from(self.umem)),
            (qp(qpc::DBR_ADDR), RECORDS + 64),
        ] {
            field.set(&mut command, value);
        }
        command
    }

    pub fn dct_command(&self, cqn: u32) -> Vec<u8> {
        let mut command = vec![0; create_dct::IN];
        OPCODE.set(&mut command, Opcode::CreateDct as u64);
        for (field, value) in [
            (dctc::PD, u64::from(self.pdn)),
            (dctc::CQN, u64::from(cqn)),
            (dctc::RWE, 1),
            (dctc::MTU, 5),
            (dctc::PORT, 1),
            (dctc::DC_ACCESS_KEY, 0xdc),
        ] {
            field.within(create_dct::DCTC).set(&mut command, value);
        }
        command
    }

    pub fn cq(&mut self) -> (u32, u32) {
        self.client.memory.write(QUEUES + CQ_AT, &[0xff; 1024]).unwrap();
        self.create(&self.cq_command()).unwrap()
    }

    /// A connected pair: handle and number of its CQ, and of itself.
    pub fn pair(&mut self) -> [(u32, u32); 2] {
        let (cq, cqn) = self.cq();
        let (handle, qpn) = self.create(&self.qp_command(cqn)).unwrap();
        for step in 0..3 {
            self.modify(handle, &step_command(step, qpn, qpn)).unwrap();
        }
        [(cq, cqn), (handle, qpn)]
    }

    /// Posts a WQE of one block at an index, and rings.
    pub fn post(&self, ctrl: &Ctrl, index: u64, segments: &[&[u8]]) {
        self.post_blocks(ctrl, index, 1, segments);
    }

    /// Posts a WQE of so many blocks, that doesn't wrap.
    pub fn post_blocks(&self, ctrl: &Ctrl, index: u64, blocks: u64, segments: &[&[u8]]) {
        let wqe = [ctrl.as_bytes(), &segments.concat()].concat();
        let memory = &self.client.memory;
        memory.write(QUEUES + 64 + index % 16 * 64, &wqe).unwrap();
        memory.write(QUEUES + RECORDS + 64 + 4, record(index + blocks).as_bytes()).unwrap();
        let file = std::fs::File::from(self.page.file.try_clone().unwrap());
        let ring = Doorbell::last_wqe(ctrl);
        std::os::unix::fs::FileExt::write_at(&file, ring.as_bytes(), UAR_SEND as u64).unwrap();
        for _ in 0..20 {
            self.host.step();
        }
    }

    pub fn has_cqe(&self, index: u64) -> bool {
        self.entry(index).is_valid(index, 4)
    }

    pub fn cqe(&self, index: u64) -> Cqe {
        let cqe = self.entry(index);
        assert!(cqe.is_valid(index, 4), "{cqe:?}");
        cqe
    }

    fn entry(&self, index: u64) -> Cqe {
        let mut bytes = [0; 64];
        self.client.memory.read(QUEUES + CQ_AT + index * 64, &mut bytes).unwrap();
        Cqe::read_from_bytes(&bytes).unwrap()
    }
}

pub fn cq(field: Field) -> Field {
    field.within(create_cq::CQC)
}

pub fn qp(field: Field) -> Field {
    field.within(create_qp::QPC)
}

pub fn path(field: Field) -> Field {
    qp(field.within(qpc::PRIMARY_PATH))
}

pub fn short(opcode: Opcode, number: u32) -> Vec<u8> {
    let mut command = vec![0; SHORT];
    OPCODE.set(&mut command, opcode as u64);
    NUMBER.set(&mut command, u64::from(number));
    command
}

/// The commands that take an RC pair from reset to where it sends, to a peer on LID 1.
pub fn step_command(step: usize, qpn: u32, peer: u32) -> Vec<u8> {
    let opcode = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp][step];
    let mut command = short(opcode, qpn);
    command.resize(modify_qp::IN, 0);
    let fields: &[(Field, u64)] = match step {
        0 => &[
            (qp(qpc::RWE), 1),
            (qp(qpc::RAE), 1),
            (qp(qpc::ATOMIC_MODE), 3),
            (qp(qpc::PM_STATE), 3),
            (path(ads::VHCA_PORT_NUM), 1),
        ],
        1 => &[
            (qp(qpc::MTU), 5),
            (qp(qpc::LOG_MSG_MAX), 30),
            (qp(qpc::REMOTE_QPN), peer as u64),
            (qp(qpc::LOG_RRA_MAX), 4),
            (qp(qpc::MIN_RNR_NAK), 12),
            (path(ads::RLID), 1),
        ],
        _ => &[
            (qp(qpc::LOG_SRA_MAX), 4),
            (qp(qpc::RETRY_COUNT), 7),
            (qp(qpc::RNR_RETRY), 7),
            (path(ads::ACK_TIMEOUT), 14),
        ],
    };
    for (field, value) in fields {
        field.set(&mut command, *value);
    }
    command
}
