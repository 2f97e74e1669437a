//! One opened uverbs file: commands in both forms, and the objects that they make.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{CommandHeader, EXTENDED, ExCommandHeader};
use crate::attr::Call;
use crate::channel::{Channel, identity, open_files};
use crate::commands::{COMMANDS, METHODS, Reply, Request};
use crate::config::DeviceConfig;
use crate::engine::{Host, Port, Shared};
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::memory::ClientMemory;
use crate::objects::{Object, Objects};
use crate::page::{Mappable, PAGE};

/// `RDMA_VERBS_IOCTL`.
const VERBS_IOCTL: u64 = 0xc018_1b01;

/// One opened uverbs file. Dropping it destroys what was made through it.
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) device: DeviceConfig,
    pub(crate) objects: Objects,
    /// Channels that were made through this file.
    pub(crate) channels: Vec<Arc<Channel>>,
    /// Of events that name no other channel.
    pub(crate) async_channel: Option<Arc<Channel>>,
    /// The client has asked for its context: nothing else goes before.
    pub(crate) is_ready: bool,
    /// It may send commands of the device's own format.
    pub(crate) has_devx: bool,
}

impl Context {
    /// Opens the device of a number.
    ///
    /// # Errors
    /// `ENOENT` if there is none; `ENOMEM` if too many processes have it open; `EAGAIN` if there can be no engine.
    pub fn open(host: &Host, device: u16) -> Result<Self, Errno> {
        let device = host.open(device)?;
        Ok(Self {
            shared: Arc::clone(&host.shared),
            device,
            objects: Objects::default(),
            channels: Vec::new(),
            async_channel: None,
            is_ready: false,
            has_devx: false,
        })
    }

    /// The `write` of a command of `len` bytes at `address`. Gives `len`.
    ///
    /// # Errors
    /// As the kernel answers.
    pub fn write(
        &mut self,
        memory: &dyn ClientMemory,
        address: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut header = CommandHeader::new_zeroed();
        if len < size_of::<CommandHeader>() || len > MOST {
            return Err(Errno::EINVAL);
        }
        memory.read(address, header.as_mut_bytes())?;
        let command = COMMANDS.iter().find(|command| command.number == header.command);
        let command = command.ok_or(Errno::EOPNOTSUPP)?;
        let mut bytes = vec![0; len];
        memory.read(address, &mut bytes)?;
        let (in_words, out_words) = (usize::from(header.in_words), usize::from(header.out_words));
        let (body, frame) = if header.command & EXTENDED == 0 {
            if in_words * 4 != len {
                return Err(Errno::EINVAL);
            }
            let body = &bytes[size_of::<CommandHeader>()..];
            let core_in = command.core_in.min(body.len());
            let response = body.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let core_room = command.core_out.min(out_words * 4);
            (body, Frame { core_in, response, core_room, room: out_words * 4 })
        } else {
            let start = size_of::<CommandHeader>() + size_of::<ExCommandHeader>();
            let mut ex = ExCommandHeader::new_zeroed();
            let raw = bytes.get(size_of::<CommandHeader>()..start).ok_or(Errno::EINVAL)?;
            ex.as_mut_bytes().copy_from_slice(raw);
            let driver_in = usize::from(ex.provider_in_words) * 8;
            let core_in = in_words * 8;
            if start + core_in + driver_in != len || ex.cmd_hdr_reserved != 0 {
                return Err(Errno::EINVAL);
            }
            let core_room = out_words * 8;
            let room = core_room + usize::from(ex.provider_out_words) * 8;
            (&bytes[start..], Frame { core_in, response: ex.response, core_room, room })
        };
        let (core, driver) = body.split_at(frame.core_in);
        let driver_room = frame.room - frame.core_room;
        if core.len() < command.core_in || frame.core_room < command.core_out {
            return Err(Errno::ENOSPC);
        }
        // The plain form of a command without an answer has no place for one.
        let is_answered = command.core_out > 0 || header.command & EXTENDED != 0;
        if frame.room > 0 && is_answered {
            memory.write(frame.response, &vec![0; frame.room])?;
        }
        let request = Request { memory, core, driver, core_room: frame.core_room, driver_room };
        let reply = self.command(command, &request)?;
        if is_answered {
            let mut answer = fitted(&reply.core, frame.core_room);
            answer.extend(fitted(&reply.driver, driver_room));
            memory.write(frame.response, &answer)?;
            give(reply.gift);
        }
        Ok(len)
    }

    /// A command that a write, or an ioctl in its place, has brought.
    pub(crate) fn command(
        &mut self,
        command: &crate::commands::Command,
        request: &Request<'_>,
    ) -> Result<Reply, Errno> {
        if request.core.len() < command.core_in || request.core_room < command.core_out {
            return Err(Errno::ENOSPC);
        }
        if !self.is_ready && !command.is_first {
            return Err(Errno::EINVAL);
        }
        (command.run)(self, request)
    }

    /// The `ioctl` of a frame at `address`.
    ///
    /// # Errors
    /// As the kernel answers.
    pub fn ioctl(
        &mut self,
        memory: &dyn ClientMemory,
        request: u64,
        address: u64,
    ) -> Result<(), Errno> {
        // Callers may extend the sign of what is 32 bits.
        if request & 0xffff_ffff != VERBS_IOCTL {
            return Err(Errno::ENOTTY);
        }
        let call = Call::read(memory, address)?;
        let method = METHODS
            .iter()
            .find(|method| method.object == call.object && method.method == call.method)
            .ok_or(Errno::EPROTONOSUPPORT)?;
        if !self.is_ready && !method.is_first {
            return Err(Errno::EINVAL);
        }
        call.check_known(method.attrs)?;
        call.probe(method.outputs)?;
        (method.run)(self, &call)
    }

    /// What an `mmap` of `len` bytes at `offset` of the file is of.
    ///
    /// # Errors
    /// `EINVAL` if nothing lies there.
    pub fn mmap(&self, offset: u64, len: usize) -> Result<Mappable, Errno> {
        let page = offset / PAGE as u64;
        let found = self.objects.iter().find_map(|(_, object)| match object {
            Object::Uar(uar) if u64::from(uar.page) == page => Some(&uar.mappable),
            _ => None,
        });
        match found {
            Some(mappable) if len == mappable.len && offset.is_multiple_of(PAGE as u64) => {
                Ok(mappable.clone())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Runs `f` on the device, between two steps of the engine.
    pub(crate) fn with_port<R>(
        &self,
        f: impl FnOnce(&mut Port, &Fabric) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.shared.with_port(self.device.index, f)
    }

    /// Makes a channel, and the descriptor that is the client's.
    pub(crate) fn new_channel(&mut self, event: usize) -> Result<(Arc<Channel>, OwnedFd), Errno> {
        self.forget_closed_channels();
        let (channel, client) = Channel::new(event)?;
        let channel = Arc::new(channel);
        self.channels.push(Arc::clone(&channel));
        Ok((channel, client))
    }

    /// Lets go of channels that the client has closed and that nothing tells its events by: no close comes this way.
    fn forget_closed_channels(&mut self) {
        let is_idle = |channel: &Arc<Channel>| Arc::strong_count(channel) == 1;
        if self.channels.iter().any(is_idle)
            && let Ok(open) = open_files()
        {
            self.channels.retain(|channel| !is_idle(channel) || channel.is_open_elsewhere(&open));
        }
    }

    /// The channel behind a descriptor of the client's, if its events have so many bytes.
    pub(crate) fn channel(&self, fd: i32, event: usize) -> Result<Arc<Channel>, Errno> {
        let identity = identity(fd)?;
        let found = self.channels.iter().find(|channel| channel.is(identity, event));
        found.map(Arc::clone).ok_or(Errno::EBADF)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for handle in self.objects.in_order_of_end() {
            let _ = crate::commands::destroy(self, handle);
        }
    }
}

/// Bytes that a command may have.
const MOST: usize = 64 << 10;

/// What of a command's bytes is whose.
struct Frame {
    core_in: usize,
    response: u64,
    core_room: usize,
    room: usize,
}

/// Cut to the client's room, zeros behind what is shorter.
fn fitted(bytes: &[u8], room: usize) -> Vec<u8> {
    let mut answer = bytes.to_vec();
    answer.resize(room, 0);
    answer
}

/// Leaves a descriptor to the client, which has been told of it.
pub(crate) fn give(fd: Option<OwnedFd>) {
    let _ = fd.map(IntoRawFd::into_raw_fd);
}
