//! The frame of an ioctl: its header and attributes, read once and checked.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{IoctlHeader, RawAttr};
use crate::errno::Errno;
use crate::memory::ClientMemory;

const MANDATORY: u16 = 1;
const VALID_OUTPUT: u16 = 2;

/// One call, with the client's memory to answer into.
pub(crate) struct Call<'a> {
    pub(crate) memory: &'a dyn ClientMemory,
    pub(crate) object: u16,
    pub(crate) method: u16,
    /// Where the first attribute lies.
    at: u64,
    attrs: Vec<RawAttr>,
}

impl<'a> Call<'a> {
    /// Reads the frame at `address`.
    pub(crate) fn read(memory: &'a dyn ClientMemory, address: u64) -> Result<Self, Errno> {
        let mut header = IoctlHeader::new_zeroed();
        memory.read(address, header.as_mut_bytes())?;
        let count = usize::from(header.num_attrs);
        let whole = size_of::<IoctlHeader>() + count * size_of::<RawAttr>();
        if header.reserved1 != 0 || header.reserved2 != 0 {
            return Err(Errno::EPROTONOSUPPORT);
        }
        if usize::from(header.length) != whole {
            return Err(Errno::EINVAL);
        }
        let at = address.checked_add(size_of::<IoctlHeader>() as u64).ok_or(Errno::EFAULT)?;
        let mut attrs = vec![RawAttr::new_zeroed(); count];
        memory.read(at, attrs.as_mut_bytes())?;
        for (i, attr) in attrs.iter().enumerate() {
            if attrs[..i].iter().any(|other| other.attr_id == attr.attr_id) {
                return Err(Errno::EINVAL);
            }
        }
        Ok(Self { memory, object: header.object_id, method: header.method_id, at, attrs })
    }

    /// Refuses attributes that must be understood and aren't.
    pub(crate) fn check_known(&self, known: &[u16]) -> Result<(), Errno> {
        let strange = |attr: &&RawAttr| !known.contains(&attr.attr_id);
        match self.attrs.iter().filter(strange).find(|attr| attr.flags & MANDATORY != 0) {
            Some(_) => Err(Errno::EPROTONOSUPPORT),
            None => Ok(()),
        }
    }

    fn attr(&self, id: u16) -> Option<(usize, &RawAttr)> {
        self.attrs.iter().enumerate().find(|(_, attr)| attr.attr_id == id)
    }

    pub(crate) fn has(&self, id: u16) -> bool {
        self.attr(id).is_some()
    }

    /// The bytes of an input, or none if the attribute isn't there.
    pub(crate) fn bytes(&self, id: u16) -> Result<Option<Vec<u8>>, Errno> {
        let Some((_, attr)) = self.attr(id) else { return Ok(None) };
        let len = usize::from(attr.len);
        if len <= 8 {
            return Ok(Some(attr.data.to_ne_bytes()[..len].to_vec()));
        }
        let mut bytes = vec![0; len];
        self.memory.read(attr.data, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// A structure of input.
    pub(crate) fn input<T: FromBytes + IntoBytes>(&self, id: u16) -> Result<T, Errno> {
        parse(&self.bytes(id)?.ok_or(Errno::EINVAL)?)
    }

    /// A number of input, whatever its width; it is in the attribute itself.
    pub(crate) fn number(&self, id: u16) -> Result<u64, Errno> {
        self.number_or(id)?.ok_or(Errno::EINVAL)
    }

    /// As [`number`](Self::number), or none if the attribute isn't there.
    pub(crate) fn number_or(&self, id: u16) -> Result<Option<u64>, Errno> {
        match self.attr(id) {
            None => Ok(None),
            Some((_, attr)) if attr.len <= 8 => Ok(Some(attr.data)),
            Some(_) => Err(Errno::EINVAL),
        }
    }

    /// A number of 32 bits.
    pub(crate) fn u32(&self, id: u16) -> Result<u32, Errno> {
        u32::try_from(self.number(id)?).map_err(|_| Errno::EINVAL)
    }

    /// A handle of an object.
    pub(crate) fn handle(&self, id: u16) -> Result<u32, Errno> {
        let (_, attr) = self.attr(id).ok_or(Errno::EINVAL)?;
        if attr.len != 0 {
            return Err(Errno::EINVAL);
        }
        u32::try_from(attr.data).map_err(|_| Errno::EINVAL)
    }

    /// A descriptor of the client's.
    pub(crate) fn descriptor(&self, id: u16) -> Result<Option<i32>, Errno> {
        match self.number_or(id)? {
            None => Ok(None),
            Some(fd) => i32::try_from(fd as i64).map(Some).map_err(|_| Errno::EBADF),
        }
    }

    /// Bytes that an output has room for; 0 if the client doesn't ask for it.
    pub(crate) fn room(&self, id: u16) -> usize {
        self.attr(id).map_or(0, |(_, attr)| usize::from(attr.len))
    }

    /// Answers an output: cut to the client's room, zeros behind what is shorter.
    pub(crate) fn output(&self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let Some((nth, attr)) = self.attr(id) else { return Ok(()) };
        let room = usize::from(attr.len);
        let mut answer = vec![0; room];
        let len = room.min(bytes.len());
        answer[..len].copy_from_slice(&bytes[..len]);
        self.memory.write(attr.data, &answer)?;
        let flags = attr.flags | VALID_OUTPUT;
        let at = self.at + (nth * size_of::<RawAttr>()) as u64 + 4;
        self.memory.write(at, &flags.to_ne_bytes())
    }

    /// Answers with a new object's handle, or with a descriptor.
    pub(crate) fn output_handle(&self, id: u16, handle: u64) -> Result<(), Errno> {
        let (nth, _) = self.attr(id).ok_or(Errno::EINVAL)?;
        let at = self.at + (nth * size_of::<RawAttr>()) as u64 + 8;
        self.memory.write(at, &handle.to_ne_bytes())
    }

    /// Refuses, before anything has happened, a call whose outputs can't be written.
    pub(crate) fn probe(&self, outputs: &[u16]) -> Result<(), Errno> {
        for &id in outputs {
            if let Some((_, attr)) = self.attr(id) {
                self.memory.write(attr.data, &vec![0; usize::from(attr.len)])?;
            }
        }
        Ok(())
    }
}

/// A structure from a client's bytes: what is missing is zero, what it has behind the structure must be.
pub(crate) fn parse<T: FromBytes + IntoBytes>(bytes: &[u8]) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    let into = value.as_mut_bytes();
    let len = into.len().min(bytes.len());
    into[..len].copy_from_slice(&bytes[..len]);
    if bytes[len..].iter().any(|&byte| byte != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(value)
}
