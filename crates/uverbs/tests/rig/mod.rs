//! A client of one context: its memory, and the bytes of its calls.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

pub mod devx;
pub mod program;
pub mod shape;

use uverbs::{
    BufferMemory, ClientMemory, Context, DeviceConfig, Errno, Fabric, Host, LinkLayer, Settings,
};

pub const BASE: u64 = 0x10_0000;
pub const LEN: usize = 1 << 20;
/// Where calls are written, and where their answers go.
pub const FRAME: u64 = BASE + 0x8_0000;
pub const ANSWER: u64 = BASE + 0x9_0000;
pub const INPUT: u64 = BASE + 0xa_0000;
pub const DRIVER: u16 = 1 << 12;
pub const IOCTL: u64 = 0xc018_1b01;
pub const MANDATORY: u16 = 1;

/// An attribute of an ioctl.
#[derive(Clone, Debug)]
pub enum Attr {
    /// A number in the attribute: identifier, bytes, value.
    Number(u16, u16, u64),
    Handle(u16, u32),
    /// Input by pointer.
    Bytes(u16, Vec<u8>),
    /// Room for an output.
    Out(u16, u16),
}

impl Attr {
    pub fn id(&self) -> u16 {
        match self {
            Self::Number(id, ..) | Self::Handle(id, _) | Self::Bytes(id, _) | Self::Out(id, _) => {
                *id
            }
        }
    }
}

pub struct Client {
    pub context: Context,
    pub memory: BufferMemory,
}

pub fn host(link_layer: LinkLayer) -> Host {
    let devices = DeviceConfig::several(2, link_layer);
    Host::stepped(Fabric::private().unwrap(), Settings::of(devices))
}

impl Client {
    pub fn new(host: &Host) -> Self {
        let memory = BufferMemory::new(BASE, LEN);
        Self { context: Context::open(host, 0).unwrap(), memory }
    }

    /// A client that has its context.
    pub fn ready(host: &Host) -> Self {
        let mut client = Self::new(host);
        client.write(0, &[&[0; 8], &ucontext(2)[..]].concat(), 8 + 72).unwrap();
        client
    }

    /// A command by `write`: gives `room` bytes of answer.
    pub fn write(&mut self, number: u32, body: &[u8], room: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend(((8 + body.len()) as u16 / 4).to_ne_bytes());
        bytes.extend((room as u16 / 4).to_ne_bytes());
        bytes.extend_from_slice(body);
        // A command without an answer has no place for one.
        if body.len() >= 8 && room > 0 {
            bytes[8..16].copy_from_slice(&ANSWER.to_ne_bytes());
        }
        self.raw_write(&bytes)?;
        let mut answer = vec![0; room];
        self.memory.read(ANSWER, &mut answer).unwrap();
        Ok(answer)
    }

    /// A command by `write`, in the form that its number says. Gives the answers of both parts, and room behind.
    pub fn write_parts(&mut self, number: u32, shape: &shape::Shape) -> Result<Vec<u8>, Errno> {
        let shape::Shape { core, driver, core_room, driver_room } = shape;
        let room = core_room + driver_room;
        let answer = if number < 1 << 31 {
            self.write(number, &[&core[..], driver].concat(), room)
        } else {
            let mut bytes = number.to_ne_bytes().to_vec();
            let eights = |len: usize| (len as u16 / 8).to_ne_bytes();
            bytes.extend([eights(core.len()), eights(*core_room)].concat());
            bytes.extend(ANSWER.to_ne_bytes());
            bytes.extend([eights(driver.len()), eights(*driver_room), [0; 2], [0; 2]].concat());
            bytes.extend([&core[..], driver].concat());
            self.raw_write(&bytes).map(|_| {
                let mut answer = vec![0; room];
                self.memory.read(ANSWER, &mut answer).unwrap();
                answer
            })
        };
        answer.map(|mut bytes| {
            bytes.resize(room + 128, 0);
            bytes
        })
    }

    pub fn raw_write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.memory.write(FRAME, bytes).unwrap();
        self.context.write(&self.memory, FRAME, bytes.len())
    }

    /// A method: gives the attributes' data words afterwards, and the outputs in order.
    pub fn method(
        &mut self,
        object: u16,
        method: u16,
        attrs: &[Attr],
    ) -> Result<(Vec<u64>, Vec<Vec<u8>>), Errno> {
        let mut frame = Vec::new();
        for half in [24 + 16 * attrs.len() as u16, object, method, attrs.len() as u16] {
            frame.extend(half.to_ne_bytes());
        }
        frame.extend([0; 16]);
        let (mut input, mut output) = (INPUT, ANSWER);
        let mut outputs = Vec::new();
        for attr in attrs {
            let (id, len, data) = match attr {
                Attr::Number(id, len, value) => (*id, *len, *value),
                Attr::Handle(id, handle) => (*id, 0, u64::from(*handle)),
                Attr::Bytes(id, bytes) if bytes.len() <= 8 => {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    (*id, bytes.len() as u16, u64::from_ne_bytes(word))
                }
                Attr::Bytes(id, bytes) => {
                    self.memory.write(input, bytes).unwrap();
                    input += 1024;
                    (*id, bytes.len() as u16, input - 1024)
                }
                Attr::Out(id, len) => {
                    outputs.push((output, *len));
                    output += 1024;
                    (*id, *len, output - 1024)
                }
            };
            for half in [id, len, MANDATORY, 0] {
                frame.extend(half.to_ne_bytes());
            }
            frame.extend(data.to_ne_bytes());
        }
        self.memory.write(FRAME, &frame).unwrap();
        self.context.ioctl(&self.memory, IOCTL, FRAME)?;
        let words = (0..attrs.len()).map(|nth| {
            let mut word = [0; 8];
            self.memory.read(FRAME + 24 + 16 * nth as u64 + 8, &mut word).unwrap();
            u64::from_ne_bytes(word)
        });
        let words = words.collect();
        let outputs = outputs.into_iter().map(|(at, len)| {
            let mut bytes = vec![0; usize::from(len)];
            self.memory.read(at, &mut bytes).unwrap();
            bytes
        });
        Ok((words, outputs.collect()))
    }

    pub fn pd(&mut self) -> u32 {
        u32_at(&self.write(3, &[0; 8], 8).unwrap(), 0)
    }

    /// A doorbell page: its handle and number.
    pub fn uar(&mut self) -> (u32, u32) {
        let attrs = [
            Attr::Handle(DRIVER, 0),
            Attr::Number(DRIVER + 1, 8, 0),
            Attr::Out(DRIVER + 2, 8),
            Attr::Out(DRIVER + 3, 4),
            Attr::Out(DRIVER + 4, 4),
        ];
        let (words, outputs) = self.method(DRIVER + 8, DRIVER, &attrs).unwrap();
        (words[0] as u32, u32_at(&outputs[2], 0))
    }

    /// A queue of 16 entries at `at`, with its record behind: handle.
    pub fn cq(&mut self, at: u64, channel: i32) -> Result<u32, Errno> {
        self.memory.write(at, &[0xff; 1024]).unwrap();
        let body = cq_body(15, at, channel);
        self.write(18, &body, 16).map(|answer| u32_at(&answer, 0))
    }
}

/// The body of a CREATE_CQ.
pub fn cq_body(cqe: u32, at: u64, channel: i32) -> Vec<u8> {
    let mut body = vec![0; 32 + 32];
    put(&mut body, 8, &0xc0ffee_u64.to_ne_bytes());
    put(&mut body, 16, &cqe.to_ne_bytes());
    put(&mut body, 24, &channel.to_ne_bytes());
    put(&mut body, 32, &at.to_ne_bytes());
    put(&mut body, 40, &(at + 1024).to_ne_bytes());
    put(&mut body, 48, &64u32.to_ne_bytes());
    body
}

/// The body of a CREATE_QP: 16 blocks of sends behind 16 receives of 16 bytes at `at`, and the record at `record`.
pub fn qp_body(pd: u32, cq: u32, page: u32, at: u64, record: u64) -> Vec<u8> {
    let mut body = vec![0; 56 + 56];
    put(&mut body, 8, &0xdead_u64.to_ne_bytes());
    put(&mut body, 16, &pd.to_ne_bytes());
    put(&mut body, 20, &cq.to_ne_bytes());
    put(&mut body, 24, &cq.to_ne_bytes());
    body[53] = 2;
    put(&mut body, 56, &at.to_ne_bytes());
    put(&mut body, 64, &record.to_ne_bytes());
    for (offset, value) in [(72, 16u32), (76, 16), (80, 4), (84, 1 << 10), (88, 7), (92, page)] {
        put(&mut body, offset, &value.to_ne_bytes());
    }
    body
}

/// The body of a CREATE_SRQ of 16 places of 64 bytes (15 WQEs of 3 segments) at `at`.
pub fn srq_body(pd: u32, at: u64) -> Vec<u8> {
    let mut body = vec![0; 32 + 32];
    put(&mut body, 8, &0xbeef_u64.to_ne_bytes());
    for (offset, value) in [(16, pd), (20, 15), (24, 3)] {
        put(&mut body, offset, &value.to_ne_bytes());
    }
    put(&mut body, 32, &at.to_ne_bytes());
    put(&mut body, 40, &(at + 2048).to_ne_bytes());
    body
}

/// mlx5's part of GET_CONTEXT.
pub fn ucontext(lib_caps: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = 16;
    bytes[16] = 1;
    bytes[24..].copy_from_slice(&lib_caps.to_ne_bytes());
    bytes
}

/// The body of a REG_MR.
pub fn mr_body(pd: u32, start: u64, length: u64, iova: u64, access: u32) -> Vec<u8> {
    let mut body = vec![0; 40];
    put(&mut body, 8, &start.to_ne_bytes());
    put(&mut body, 16, &length.to_ne_bytes());
    put(&mut body, 24, &iova.to_ne_bytes());
    put(&mut body, 32, &pd.to_ne_bytes());
    put(&mut body, 36, &access.to_ne_bytes());
    body
}

/// The bits of MODIFY_QP that take a queue pair from RESET to INIT, to RTR, and to RTS.
pub const STEPS: [u32; 3] = [0x39, 0x12_9181, 0x1_2e01];

/// The body of a MODIFY_QP of an RC pair that leads to LID 1.
pub fn modify_body(qp: u32, mask: u32, state: u8, peer: u32) -> Vec<u8> {
    let mut body = vec![0; 112];
    put(&mut body, 20, &1u16.to_ne_bytes());
    body[31] = 1;
    for (offset, value) in [(64, qp), (68, mask), (84, peer), (88, 0xf)] {
        put(&mut body, offset, &value.to_ne_bytes());
    }
    // State, MTU, reads either way, RNR timer, port, timeout, retries.
    for (offset, value) in [
        (96, state),
        (98, 5),
        (101, 1),
        (102, 1),
        (103, 1),
        (104, 1),
        (105, 14),
        (106, 7),
        (107, 7),
    ] {
        body[offset] = value;
    }
    body
}

pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}
