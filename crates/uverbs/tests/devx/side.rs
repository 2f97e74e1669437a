//! A client that sends commands of the device's own format, and the bytes of these.

use uverbs::{ClientMemory, Errno, Host, LinkLayer, Mappable};
use wire::cqe::Cqe;
use wire::devx::{NUMBER, OP_MOD, Opcode, SHORT, STATUS, SYNDROME};
use wire::doorbell::{Doorbell, UAR_SEND, record};
use wire::wqe::Ctrl;
use zerocopy::{FromBytes, IntoBytes};

use crate::rig::devx::{Names, cq_command, dct_command, qp_command};
pub use crate::rig::devx::{cq, path, qp, short, step_command};
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

    pub fn names(&self) -> Names {
        Names { umem: self.umem, page: self.page_number, pd: self.pdn, eqn: self.eqn }
    }

    pub fn cq_command(&self) -> Vec<u8> {
        cq_command(&self.names(), CQ_AT, RECORDS)
    }

    /// 16 blocks of sends behind 4 receives.
    pub fn qp_command(&self, cqn: u32) -> Vec<u8> {
        qp_command(&self.names(), cqn, 0, RECORDS + 64)
    }

    pub fn dct_command(&self, cqn: u32) -> Vec<u8> {
        dct_command(&self.names(), cqn)
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
