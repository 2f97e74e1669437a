//! Queue pairs of two processes, by the same calls that the libraries make.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::os::fd::AsRawFd;
use std::path::Path;

use rig::*;
use uverbs::{ClientMemory, DeviceConfig, Fabric, Host, LinkLayer, Mappable, Settings};
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::doorbell::{Doorbell, UAR_SEND, record};
use wire::wqe::{Ctrl, CtrlFlags, Data, Opcode, Raddr};
use zerocopy::{FromBytes, IntoBytes};

const CQ: u64 = BASE;
const CQ_RECORD: u64 = BASE + 1024;
const QUEUES: u64 = BASE + 4096;
const RECORD: u64 = BASE + 2048;
const PAYLOAD: u64 = BASE + 0x1_0000;

struct Side {
    host: Host,
    client: Client,
    page: Mappable,
    channel: i32,
    qp: u32,
    qpn: u32,
    lkey: u32,
    rkey: u32,
    posted: u64,
    polled: u64,
}

impl Side {
    fn new(host: Host) -> Self {
        let mut client = Client::ready(&host);
        let pd = client.pd();
        let (_, page_number) = client.uar();
        let channel = u32_at(&client.write(17, &[0; 8], 4).unwrap(), 0) as i32;
        let cq = client.cq(CQ, channel).unwrap();
        let mr = client.write(9, &mr_body(pd, PAYLOAD, 0x1_0000, PAYLOAD, 0xf), 12).unwrap();
        let made = client.write(24, &qp_body(pd, cq, page_number, QUEUES, RECORD), 72).unwrap();
        let page = client.context.mmap(u64::from(page_number) << 12, 4096).unwrap();
        Self {
            host,
            page,
            channel,
            qp: u32_at(&made, 0),
            qpn: u32_at(&made, 4),
            lkey: u32_at(&mr, 4),
            rkey: u32_at(&mr, 8),
            posted: 0,
            polled: 0,
            client,
        }
    }

    fn connect(&mut self, peer: u32) {
        for (mask, state) in STEPS.into_iter().zip(1..) {
            self.client.write(26, &modify_body(self.qp, mask, state, peer), 0).unwrap();
        }
    }

    /// Posts a put of the payload's first 8 bytes to 8 bytes behind, and rings.
    fn put(&mut self, rkey: u32) {
        let ctrl = Ctrl::new(Opcode::RdmaWrite, self.posted, self.qpn, 3, CtrlFlags::CQ_UPDATE, 0);
        let mut wqe = ctrl.as_bytes().to_vec();
        wqe.extend_from_slice(Raddr::new(PAYLOAD + 8, rkey).as_bytes());
        wqe.extend_from_slice(Data::new(PAYLOAD, 8, self.lkey).as_bytes());
        let memory = &self.client.memory;
        // Sends lie behind 16 receives of 16 bytes.
        memory.write(QUEUES + 256 + self.posted % 16 * 64, &wqe).unwrap();
        self.posted += 1;
        memory.write(RECORD + 4, record(self.posted).as_bytes()).unwrap();
        let ring = Doorbell::last_wqe(&ctrl);
        let file = std::fs::File::from(self.page.file.try_clone().unwrap());
        std::os::unix::fs::FileExt::write_at(&file, ring.as_bytes(), UAR_SEND as u64).unwrap();
    }

    fn poll(&mut self) -> Option<Cqe> {
        let mut bytes = [0; 64];
        self.client.memory.read(CQ + self.polled % 16 * 64, &mut bytes).unwrap();
        let cqe = Cqe::read_from_bytes(&bytes).unwrap();
        let valid = cqe.is_valid(self.polled, 4);
        self.polled += u64::from(valid);
        valid.then_some(cqe)
    }

    fn event(&self) -> Option<u64> {
        let mut bytes = [0u8; 8];
        // SAFETY: reads into `bytes` alone.
        let read =
            unsafe { libc::recv(self.channel, bytes.as_mut_ptr().cast(), 8, libc::MSG_DONTWAIT) };
        (read == 8).then(|| u64::from_ne_bytes(bytes))
    }
}

/// Two processes' devices on one fabric.
fn two() -> [Side; 2] {
    let file = Fabric::create().unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    [0, 1].map(|_| {
        let devices = DeviceConfig::several(1, LinkLayer::InfiniBand);
        Side::new(Host::stepped(Fabric::open(Path::new(&path)).unwrap(), Settings::of(devices)))
    })
}

fn steps(sides: &[Side]) {
    for _ in 0..20 {
        for side in sides {
            side.host.step();
        }
    }
}

#[test]
fn a_put_lands_in_the_other_process_and_its_completion_is_told() {
    let [mut a, mut b] = two();
    a.connect(b.qpn);
    b.connect(a.qpn);
    a.client.memory.write(PAYLOAD, b"greeting").unwrap();
    // Armed for whatever comes.
    a.client.memory.write(CQ_RECORD + 4, &0u32.to_be_bytes()).unwrap();
    for _ in 0..40 {
        a.put(b.rkey);
        for _ in 0..20 {
            a.host.step();
            b.host.step();
        }
        let cqe = a.poll().unwrap();
        assert_eq!((cqe.opcode(), cqe.qpn()), (Some(CqeOpcode::Requester), a.qpn));
        assert_eq!(cqe.user_index(), 7);
        a.client.memory.write(CQ_RECORD, &(a.polled as u32).to_be_bytes()).unwrap();
    }
    let mut landed = [0; 8];
    b.client.memory.read(PAYLOAD + 8, &mut landed).unwrap();
    assert_eq!(&landed, b"greeting");
    assert_eq!((a.event(), a.event()), (Some(0xc0ffee), None));
}

#[test]
fn a_key_that_the_peer_never_gave_is_a_remote_access_error() {
    let mut sides = two();
    let [a, b] = &mut sides;
    a.connect(b.qpn);
    b.connect(a.qpn);
    a.put(0x1234_5600);
    steps(&sides);
    let cqe = sides[0].poll().unwrap();
    assert_eq!(cqe.opcode(), Some(CqeOpcode::RequesterError));
    assert_eq!(cqe.syndrome(), Some(Syndrome::RemoteAccess));
}

#[test]
fn a_peer_that_is_gone_or_never_was_costs_the_retries() {
    for was in [true, false] {
        let [mut a, mut b] = two();
        for (mask, state) in STEPS.into_iter().zip(1..) {
            let peer = if was { b.qpn } else { 0xf0_0000 };
            let mut body = modify_body(a.qp, mask, state, peer);
            // One retry, of 0.27 s.
            body[106] = 1;
            a.client.write(26, &body, 0).unwrap();
        }
        b.connect(a.qpn);
        drop(b);
        a.put(a.rkey);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let cqe = loop {
            a.host.step();
            if let Some(cqe) = a.poll() {
                break cqe;
            }
            assert!(std::time::Instant::now() < deadline, "no completion");
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!(cqe.syndrome(), Some(Syndrome::TransportRetryExceeded));
    }
}
