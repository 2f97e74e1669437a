//! Each command: what it answers, and what it refuses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rig::*;
use uverbs::{COMMANDS, ClientMemory, Context, Errno, LinkLayer, METHODS};

#[test]
fn the_tables_name_each_command_once() {
    for (i, command) in COMMANDS.iter().enumerate() {
        assert!(
            COMMANDS[..i].iter().all(|other| other.number != command.number),
            "{}",
            command.name
        );
    }
    for (i, method) in METHODS.iter().enumerate() {
        let key = (method.object, method.method);
        assert!(
            METHODS[..i].iter().all(|other| (other.object, other.method) != key),
            "{}",
            method.name
        );
    }
}

#[test]
fn the_page_names_each_command_and_method_and_no_other() {
    let page = include_str!("../../../docs/uverbs.md");
    let (_, table) = page.split_once("| objects | commands | methods |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let named: std::collections::BTreeSet<&str> = table
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.contains('_') && !word.contains(char::is_lowercase))
        .collect();
    let there: std::collections::BTreeSet<&str> =
        COMMANDS.iter().map(|c| c.name).chain(METHODS.iter().map(|m| m.name)).collect();
    assert_eq!(named, there);
}

#[test]
fn nothing_goes_before_the_context() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::new(&host);
    assert_eq!(client.write(3, &[0; 8], 8), Err(Errno::EINVAL));
    for (driver, errno) in [
        (ucontext(0).to_vec(), Errno::EOPNOTSUPP),
        (vec![], Errno::EINVAL),
        ([&ucontext(2)[..], &[1; 8]].concat(), Errno::EOPNOTSUPP),
        ([&ucontext(2)[..12], &[1; 4]].concat(), Errno::EOPNOTSUPP),
    ] {
        let body = [&[0; 8], &driver[..]].concat();
        assert_eq!(client.write(0, &body, 80), Err(errno), "{driver:?}");
    }
    let body = [&[0; 8], &ucontext(2)[..]].concat();
    let answer = client.write(0, &body, 80).unwrap();
    // SAFETY: the descriptor is this test's from now on.
    drop(unsafe { OwnedFd::from_raw_fd(u32_at(&answer, 0) as i32) });
    assert_eq!((u32_at(&answer, 4), u32_at(&answer, 8 + 40)), (1, 72));
    assert_eq!(client.write(0, &body, 80), Err(Errno::EINVAL), "twice");
    assert!(client.write(3, &[0; 8], 8).is_ok());
    assert!(matches!(Context::open(&host, 2).err(), Some(Errno::ENOENT)));
}

#[test]
fn frames_that_make_no_sense_are_refused() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let words = |number: u32, words: [u16; 2], rest: usize| {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend(words[0].to_ne_bytes());
        bytes.extend(words[1].to_ne_bytes());
        bytes.extend(vec![0; rest]);
        bytes
    };
    for (bytes, errno) in [
        (vec![0; 7], Errno::EINVAL),
        (words(3, [3, 2], 8), Errno::EINVAL),
        (words(3, [4, 0], 8), Errno::ENOSPC),
        (words(3, [3, 2], 4), Errno::ENOSPC),
        (words(99, [4, 2], 8), Errno::EOPNOTSUPP),
        // An answer at address 0.
        (words(3, [4, 2], 8), Errno::EFAULT),
        (words(1 | 1 << 31, [1, 23], 8), Errno::EINVAL),
        (words(1 | 1 << 31, [1, 23], 24), Errno::EFAULT),
    ] {
        assert_eq!(client.raw_write(&bytes), Err(errno), "{bytes:?}");
    }
    assert_eq!(client.context.write(&client.memory, BASE + LEN as u64 - 4, 16), Err(Errno::EFAULT));
    assert_eq!(client.context.ioctl(&client.memory, 1, FRAME), Err(Errno::ENOTTY));
    assert_eq!(client.context.ioctl(&client.memory, IOCTL, 8), Err(Errno::EFAULT));
    assert_eq!(client.method(0, 99, &[]), Err(Errno::EPROTONOSUPPORT));
    assert_eq!(client.method(1, 0, &[Attr::Handle(77, 0)]), Err(Errno::EPROTONOSUPPORT));
    let twice = [Attr::Handle(0, 0), Attr::Handle(0, 0)];
    assert_eq!(client.method(1, 0, &twice), Err(Errno::EINVAL));
    let outside = [Attr::Number(0, 8, 1), Attr::Number(1, 40, 8)];
    assert_eq!(client.method(0, 2, &outside), Err(Errno::EFAULT));
}

#[test]
fn the_frame_that_carries_writes_asks_for_room_first() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    // By this the library finds out that the kernel has the method.
    assert_eq!(client.method(0, 0, &[Attr::Number(2, 8, 1)]), Err(Errno::ENOSPC));
    let attrs = [
        Attr::Number(2, 8, 3),
        Attr::Bytes(0, vec![0; 8]),
        Attr::Out(1, 4),
        Attr::Out(DRIVER + 1, 4),
    ];
    let (_, outputs) = client.method(0, 0, &attrs).unwrap();
    assert_eq!(outputs.len(), 2);
}

#[test]
fn the_device_and_its_port_are_described() {
    for (link_layer, lid, layer) in
        [(LinkLayer::InfiniBand, 1u16, 1u8), (LinkLayer::Ethernet, 0, 2)]
    {
        let host = host(link_layer);
        let mut client = Client::ready(&host);
        let device = client.write(1, &[0; 8], 176).unwrap();
        assert_eq!((u32_at(&device, 40), u32_at(&device, 44)), (0x2c9, 4129));
        let mut ask = vec![0; 16];
        ask[8] = 1;
        let port = client.write(2, &ask, 40).unwrap();
        assert_eq!((&port[22..24], port[37]), (&lid.to_ne_bytes()[..], layer));
        ask[8] = 2;
        assert_eq!(client.write(2, &ask, 40), Err(Errno::EINVAL));
        let gid = |client: &mut Client, port, index| {
            let attrs = [
                Attr::Number(0, 4, port),
                Attr::Number(1, 4, index),
                Attr::Number(2, 4, 0),
                Attr::Out(3, 32),
            ];
            client.method(0, 6, &attrs).map(|(_, outputs)| outputs[0][..2].to_vec())
        };
        assert_eq!(gid(&mut client, 1, 0), Ok(vec![0xfe, 0x80]));
        assert_eq!(gid(&mut client, 1, 7), Err(Errno::ENODATA));
        assert_eq!(gid(&mut client, 1, 99), Err(Errno::EINVAL));
        assert_eq!(gid(&mut client, 2, 0), Err(Errno::EINVAL));
        let table = |room| {
            [Attr::Number(0, 8, 32), Attr::Number(1, 8, 0), Attr::Out(2, room), Attr::Out(3, 8)]
        };
        let (_, outputs) = client.method(0, 5, &table(512)).unwrap();
        assert_eq!(u32_at(&outputs[1], 0), if layer == 1 { 1 } else { 4 });
        assert_eq!(client.method(0, 5, &table(31)), Err(Errno::EINVAL));
    }
}

#[test]
fn domains_are_freed_when_nothing_uses_them() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let pd = client.pd();
    let mr = u32_at(&client.write(9, &mr_body(pd, BASE, 4096, BASE, 1), 12).unwrap(), 0);
    let free = |client: &mut Client, handle: u32| client.write(4, &handle.to_ne_bytes(), 0);
    assert_eq!(free(&mut client, pd), Err(Errno::EBUSY));
    assert_eq!(free(&mut client, mr), Err(Errno::EINVAL), "not a domain");
    assert_eq!(free(&mut client, 99), Err(Errno::EINVAL));
    assert_eq!(client.method(1, 0, &[Attr::Handle(0, mr)]), Err(Errno::ENOENT));
    assert!(client.write(13, &mr.to_ne_bytes(), 0).is_ok());
    assert!(client.method(1, 0, &[Attr::Handle(0, pd)]).is_ok());
    assert_eq!(free(&mut client, pd), Err(Errno::EINVAL), "twice");
}

#[test]
fn regions_are_checked_as_a_kernel_does() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let pd = client.pd();
    let end = BASE + LEN as u64;
    for (start, length, iova, access, pd, expected) in [
        (BASE, 4096, BASE, 0xf, pd, None),
        (BASE + 24, 1, 0x7000_0018, 0, pd, None),
        (BASE, LEN as u64, BASE, 1, pd, None),
        // Flags that a device may ignore.
        (BASE, 4096, BASE, 1 << 20 | 1, pd, None),
        (BASE, 4096, BASE, 1, 77, Some(Errno::EINVAL)),
        (BASE, 4096, BASE, 2, pd, Some(Errno::EINVAL)),
        (BASE, 4096, BASE, 8, pd, Some(Errno::EINVAL)),
        (BASE, 4096, BASE, 1 << 6, pd, Some(Errno::EOPNOTSUPP)),
        (BASE, 4096, BASE, 1 << 15, pd, Some(Errno::EINVAL)),
        (BASE, 0, BASE, 1, pd, Some(Errno::EINVAL)),
        (BASE, 4096, BASE + 8, 1, pd, Some(Errno::EINVAL)),
        (end, 4096, end, 1, pd, Some(Errno::EFAULT)),
        (end - 8, 9, end - 8, 1, pd, Some(Errno::EFAULT)),
        (BASE - 1, 8, BASE - 1, 1, pd, Some(Errno::EFAULT)),
        (BASE, u64::MAX, BASE, 1, pd, Some(Errno::EINVAL)),
        (u64::MAX - 7, 8, u64::MAX - 7, 1, pd, Some(Errno::EINVAL)),
    ] {
        let made = client.write(9, &mr_body(pd, start, length, iova, access), 12);
        assert_eq!(made.as_ref().err().copied(), expected, "{start:#x} {length:#x} {access:#x}");
        if let Ok(answer) = made {
            let query = [
                Attr::Handle(0, u32_at(&answer, 0)),
                Attr::Out(1, 4),
                Attr::Out(2, 4),
                Attr::Out(3, 8),
            ];
            let (_, outputs) = client.method(7, 3, &query).unwrap();
            assert_eq!(outputs[0], answer[4..8]);
            assert_eq!(outputs[2], length.to_ne_bytes());
            client.method(7, 1, &[Attr::Handle(0, u32_at(&answer, 0))]).unwrap();
        }
    }
    assert_eq!(client.method(7, 1, &[Attr::Handle(0, 99)]), Err(Errno::ENOENT));
    let dmabuf = |fd| [Attr::Handle(1, pd), Attr::Number(5, 8, fd), Attr::Number(6, 4, 1)];
    assert_eq!(client.method(7, 4, &dmabuf(-1i64 as u64)), Err(Errno::EBADF));
    assert_eq!(client.method(7, 4, &dmabuf(0)), Err(Errno::EOPNOTSUPP));
}

#[test]
fn completion_queues_are_checked_as_a_kernel_does() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let good = cq_body(15, BASE, -1);
    for (what, offset, bytes, errno) in [
        ("no entries", 16, 0u32.to_ne_bytes().to_vec(), Errno::EINVAL),
        ("too many", 16, (1u32 << 23).to_ne_bytes().to_vec(), Errno::EINVAL),
        ("all of them", 16, u32::MAX.to_ne_bytes().to_vec(), Errno::EINVAL),
        ("a vector", 20, 1u32.to_ne_bytes().to_vec(), Errno::EINVAL),
        ("no channel's descriptor", 24, 0i32.to_ne_bytes().to_vec(), Errno::EBADF),
        ("entries of 32 bytes", 48, 32u32.to_ne_bytes().to_vec(), Errno::EINVAL),
        ("compression", 52, vec![1], Errno::EOPNOTSUPP),
        ("a ring that isn't there", 32, 8u64.to_ne_bytes().to_vec(), Errno::EFAULT),
        ("a ring askew", 32, (BASE + 8).to_ne_bytes().to_vec(), Errno::EINVAL),
        ("a record that isn't there", 40, 0u64.to_ne_bytes().to_vec(), Errno::EFAULT),
        ("a record askew", 40, (BASE + 1025).to_ne_bytes().to_vec(), Errno::EINVAL),
    ] {
        let mut body = good.clone();
        put(&mut body, offset, &bytes);
        assert_eq!(client.write(18, &body, 16), Err(errno), "{what}");
    }
    assert_eq!(client.write(18, &good[..32], 16), Err(Errno::EINVAL), "no driver's part");
    let cq = client.cq(BASE, -1).unwrap();
    let mut resize = vec![0; 32];
    put(&mut resize, 8, &cq.to_ne_bytes());
    put(&mut resize, 12, &31u32.to_ne_bytes());
    put(&mut resize, 16, &(BASE + 8192).to_ne_bytes());
    put(&mut resize, 24, &64u16.to_ne_bytes());
    let answer = client.write(19, &resize, 8).unwrap();
    assert_eq!(u32_at(&answer, 0), 31);
    for (offset, bytes) in [(8, vec![9, 9]), (12, vec![0; 4]), (24, vec![128]), (16, vec![1])] {
        let mut body = resize.clone();
        put(&mut body, offset, &bytes);
        assert_eq!(client.write(19, &body, 8), Err(Errno::EINVAL), "{offset}");
    }
    let destroy = |handle: u32| [Attr::Handle(0, handle), Attr::Out(1, 8)];
    let (_, outputs) = client.method(3, 1, &destroy(cq)).unwrap();
    assert_eq!(outputs[0], [0; 8]);
    assert_eq!(client.method(3, 1, &destroy(cq)), Err(Errno::ENOENT));
}

#[test]
fn queue_pairs_are_checked_as_a_kernel_does() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let (pd, (uar, page)) = (client.pd(), client.uar());
    let cq = client.cq(BASE, -1).unwrap();
    let good = qp_body(pd, cq, page, BASE + 4096, BASE + 2048);
    for (what, offset, bytes, errno) in [
        ("an unknown domain", 16, vec![99], Errno::EINVAL),
        ("a domain that is a queue", 16, vec![cq as u8], Errno::EINVAL),
        ("an unknown queue", 20, vec![99], Errno::EINVAL),
        ("raw packets", 53, vec![8], Errno::EOPNOTSUPP),
        ("a shared queue that isn't there", 54, vec![1], Errno::EINVAL),
        (
            "a DC initiator that is an RC",
            84,
            (1u32 << 10 | 1 << 5).to_ne_bytes().to_vec(),
            Errno::EINVAL,
        ),
        (
            "a DC target that is an RC",
            84,
            (1u32 << 10 | 1 << 4).to_ne_bytes().to_vec(),
            Errno::EINVAL,
        ),
        ("a doorbell of the old kind", 84, vec![0, 0], Errno::EOPNOTSUPP),
        ("17 blocks", 72, vec![17], Errno::EINVAL),
        ("too many blocks", 72, (1u32 << 16).to_ne_bytes().to_vec(), Errno::EINVAL),
        ("receives of 2^40 bytes", 80, vec![40], Errno::EINVAL),
        ("receives of 2^200 bytes", 80, vec![200], Errno::EINVAL),
        ("signatures", 84, vec![1], Errno::EOPNOTSUPP),
        ("no page's number", 92, vec![99], Errno::EINVAL),
        ("queues that aren't there", 56, 0u64.to_ne_bytes().to_vec(), Errno::EFAULT),
        ("queues at the end", 56, (u64::MAX - 63).to_ne_bytes().to_vec(), Errno::EFAULT),
        ("queues askew", 56, (BASE + 8).to_ne_bytes().to_vec(), Errno::EINVAL),
        ("a record that isn't there", 64, 0u64.to_ne_bytes().to_vec(), Errno::EFAULT),
        ("something new", 108, vec![1], Errno::EINVAL),
    ] {
        let mut body = good.clone();
        put(&mut body, offset, &bytes);
        let got = client.write(24, &body, 72);
        if what == "something new" {
            // Streams of an initiator mean nothing to a pair, and are left alone.
            let handle = u32_at(&got.unwrap(), 0);
            client.method(4, 1, &[Attr::Handle(0, handle), Attr::Out(1, 4)]).unwrap();
        } else {
            assert_eq!(got, Err(errno), "{what}");
        }
    }
    let made = client.write(24, &good, 72).unwrap();
    let (qp, qpn) = (u32_at(&made, 0), u32_at(&made, 4));
    assert!(qpn > 0xffff && qpn < 1 << 24);
    let destroy = [Attr::Handle(DRIVER, uar)];
    assert_eq!(client.method(DRIVER + 8, DRIVER + 1, &destroy), Err(Errno::EBUSY));
    assert_eq!(client.method(3, 1, &[Attr::Handle(0, cq), Attr::Out(1, 8)]), Err(Errno::EBUSY));
    assert!(client.context.mmap(u64::from(page) << 12, 4096).is_ok());
    for (offset, len) in
        [(u64::from(page) << 12, 8192), (0, 4096), ((u64::from(page) << 12) + 8, 4096)]
    {
        assert_eq!(client.context.mmap(offset, len).err(), Some(Errno::EINVAL));
    }
    let states = |client: &mut Client| {
        let mut query = vec![0; 16];
        put(&mut query, 8, &qp.to_ne_bytes());
        client.write(25, &query, 128).unwrap()[108]
    };
    assert_eq!(states(&mut client), 0);
    for (what, mask, state, errno) in [
        ("from RESET to RTS", STEPS[2], 3, Errno::EINVAL),
        ("to a state that there isn't", 1, 9, Errno::EINVAL),
        ("from RESET to SQD", 1, 4, Errno::EINVAL),
        ("to INIT without a port", STEPS[0] & !0x20, 1, Errno::EINVAL),
        ("to INIT with a timeout", STEPS[0] | 0x200, 1, Errno::EINVAL),
    ] {
        let body = modify_body(qp, mask, state, qpn);
        assert_eq!(client.write(26, &body, 0).map(drop), Err(errno), "{what}");
    }
    let good = modify_body(qp, STEPS[0], 1, qpn);
    for (what, offset, bytes) in [
        ("no queue pair", 64, vec![99]),
        ("a second port", 104, vec![2]),
        ("an access that there isn't", 88, vec![0x80]),
        ("a partition key", 92, 200u16.to_ne_bytes().to_vec()),
    ] {
        let mut body = good.clone();
        put(&mut body, offset, &bytes);
        assert_eq!(client.write(26, &body, 0).map(drop), Err(Errno::EINVAL), "{what}");
    }
    client.write(26, &good, 0).unwrap();
    client.write(26, &good, 0).unwrap();
    let good = modify_body(qp, STEPS[1], 2, qpn);
    for (what, offset, bytes) in [
        ("an MTU", 98, vec![6]),
        ("reads", 102, vec![17]),
        ("a timer", 103, vec![32]),
        ("a number", 84, (1u32 << 24).to_ne_bytes().to_vec()),
        ("another port", 31, vec![2]),
    ] {
        let mut body = good.clone();
        put(&mut body, offset, &bytes);
        assert_eq!(client.write(26, &body, 0).map(drop), Err(Errno::EINVAL), "{what}");
    }
    client.write(26, &good, 0).unwrap();
    client.write(26, &modify_body(qp, STEPS[2], 3, qpn), 0).unwrap();
    assert_eq!(states(&mut client), 3);
    for state in [4, 3, 4] {
        client.write(26, &modify_body(qp, 1, state, qpn), 0).unwrap();
        assert_eq!(states(&mut client), state);
    }
    client.write(26, &modify_body(qp, 1, 6, qpn), 0).unwrap();
    assert_eq!(states(&mut client), 6);
    client.write(26, &modify_body(qp, 1, 0, qpn), 0).unwrap();
    assert_eq!(states(&mut client), 0);
    let events = client.method(4, 1, &[Attr::Handle(0, qp), Attr::Out(1, 4)]).unwrap();
    assert_eq!(events.1[0], [0; 4]);
    client.method(DRIVER + 8, DRIVER + 1, &destroy).unwrap();
}

#[test]
fn address_handles_need_an_address_that_can_be() {
    for (link_layer, global, expected) in [
        (LinkLayer::InfiniBand, 0, None),
        (LinkLayer::InfiniBand, 1, None),
        (LinkLayer::Ethernet, 1, None),
        (LinkLayer::Ethernet, 0, Some(Errno::EINVAL)),
    ] {
        let host = host(link_layer);
        let mut client = Client::ready(&host);
        let pd = client.pd();
        let mut body = vec![0; 56];
        put(&mut body, 16, &pd.to_ne_bytes());
        body[53] = global;
        body[54] = 1;
        let made = client.write(5, &body, 20);
        assert_eq!(made.as_ref().err().copied(), expected, "{link_layer:?} {global}");
        let Ok(made) = made else { continue };
        assert_eq!(client.method(1, 0, &[Attr::Handle(0, pd)]), Err(Errno::EBUSY));
        client.method(6, 0, &[Attr::Handle(0, u32_at(&made, 0))]).unwrap();
        body[54] = 2;
        assert_eq!(client.write(5, &body, 20), Err(Errno::EINVAL), "port 2");
    }
}

#[test]
fn what_a_file_made_goes_with_it() {
    let host = host(LinkLayer::InfiniBand);
    for _ in 0..600 {
        // As many as there is room for, 1024 each, many times over.
        let mut client = Client::ready(&host);
        let (pd, (_, page)) = (client.pd(), client.uar());
        let cq = client.cq(BASE, -1).unwrap();
        for nth in 0..4 {
            let body = qp_body(pd, cq, page, BASE + 4096 * (nth + 1), BASE + 2048);
            client.write(24, &body, 72).unwrap();
        }
    }
}

#[test]
fn channels_that_the_client_has_closed_are_let_go() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let channel = |client: &mut Client| {
        let fd = u32_at(&client.write(17, &[0; 8], 4).unwrap(), 0);
        // SAFETY: the descriptor is this test's from now on.
        unsafe { OwnedFd::from_raw_fd(fd as i32) }
    };
    let (used, unused) = (channel(&mut client), channel(&mut client));
    client.cq(BASE, used.as_raw_fd()).unwrap();
    for _ in 0..500 {
        channel(&mut client);
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 500, "{open} descriptors");
    client.cq(BASE + 4096, used.as_raw_fd()).unwrap();
    client.cq(BASE + 8192, unused.as_raw_fd()).unwrap();
}

#[test]
fn a_channel_of_another_kind_is_refused() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let (words, _) = client.method(16, 0, &[Attr::Handle(0, 0)]).unwrap();
    // SAFETY: the descriptor is this test's from now on.
    let errors = unsafe { OwnedFd::from_raw_fd(words[0] as i32) };
    assert_eq!(client.cq(BASE, errors.as_raw_fd()), Err(Errno::EBADF));
}

#[test]
fn an_answer_that_cannot_be_written_leaves_nothing_behind() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let first = client.pd();
    let mut bytes = [3u32, 2 << 16 | 4].map(u32::to_ne_bytes).concat();
    bytes.extend(8u64.to_ne_bytes());
    assert_eq!(client.raw_write(&bytes), Err(Errno::EFAULT));
    assert_eq!(client.pd(), first + 1, "no handle was used up");
    let _ = client.memory.read(BASE, &mut [0; 8]);
}
