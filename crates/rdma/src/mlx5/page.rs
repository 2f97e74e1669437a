//! Doorbell pages: which kind can be had for whom.

use std::ptr::NonNull;
use std::sync::Arc;

use device::cuda::{Gpu, Registers};
use softnic::CopiedMemory;
use wire::doorbell::{UAR_PAGE, UAR_SEND};

use super::dv::{Opened, Uar};
use super::error::Mlx5Error;
use crate::Memory;

/// Kinds of pages, as `enum mlx5dv_uar_alloc_type` numbers them, and those that came later.
const KINDS: [(&str, u32); 3] = [("NC_DEDICATED", 1 << 31), ("NC", 1), ("BF", 0)];

/// Who rings at a page.
#[derive(Clone, Copy)]
pub(super) enum Ringer<'a> {
    Cpu,
    Gpu(&'a Arc<Gpu>),
    Nobody,
}

/// A doorbell page, mapped for the CPU and maybe for a GPU. The mapping of the GPU goes first.
pub(super) struct Page {
    registers: Option<Registers>,
    uar: Uar,
}

impl Page {
    /// Its number in commands.
    pub(super) fn number(&self) -> u32 {
        self.uar.number()
    }

    /// Whether a GPU rings at it.
    pub(super) fn is_mapped_for_gpus(&self) -> bool {
        self.registers.is_some()
    }

    /// A page for somebody to ring at, and how it was had.
    ///
    /// A CPU's stores to a write-combining page (BF) may stay in its buffers for as long as they like unless they are
    /// flushed, which the code under test doesn't do: a CPU gets a page that isn't cached (NC), or none.
    pub(super) fn new(
        opened: &Arc<Opened>,
        ringer: Ringer<'_>,
    ) -> Result<(Self, String), Mlx5Error> {
        let (kinds, gpu, whose) = match ringer {
            Ringer::Cpu => (&KINDS[1..2], None, "the CPU"),
            Ringer::Gpu(gpu) => (&KINDS[..], Some(gpu), "the GPU"),
            Ringer::Nobody => (&KINDS[1..], None, "nobody"),
        };
        let mut tried = Vec::new();
        for (name, kind) in kinds {
            match Self::of_kind(opened, gpu, *kind) {
                Ok(page) => {
                    let before = if tried.is_empty() {
                        String::new()
                    } else {
                        format!(" (after {})", tried.join("; "))
                    };
                    return Ok((page, format!("doorbell page: {name}, for {whose}{before}")));
                }
                Err(why) => tried.push(format!("{name}: {why}")),
            }
        }
        Err(Mlx5Error::Doorbell { submitter: whose, tried: tried.join("; ") })
    }

    fn of_kind(opened: &Arc<Opened>, gpu: Option<&Arc<Gpu>>, kind: u32) -> Result<Self, String> {
        let uar = Uar::new(opened, kind).map_err(|error| error.to_string())?;
        let (base, register) = uar.registers().ok_or("the library maps no registers")?;
        let offset = register.addr().get().wrapping_sub(base.addr().get());
        if !(UAR_SEND..UAR_PAGE).contains(&offset) {
            return Err(format!("its register is {offset:#x} bytes into the page"));
        }
        // SAFETY: the library's mapping of a page, which lives as long as `uar`; the GPU's goes first.
        let registers = gpu
            .map(|gpu| unsafe { gpu.map_registers(base, UAR_PAGE) })
            .transpose()
            .map_err(|error| format!("mapped for the CPU, but not for the GPU: {error}"))?;
        Ok(Self { registers, uar })
    }

    /// As a queue pair's page: so that the register lies at [`UAR_SEND`] of it.
    pub(super) fn memory(self: &Arc<Self>) -> Result<Arc<Memory>, Mlx5Error> {
        let gone = Mlx5Error::Unsupported { what: "mapped doorbell page" };
        let (base, register) = self.uar.registers().ok_or(gone)?;
        let offset = register.addr().get() - base.addr().get() - UAR_SEND;
        let len = UAR_PAGE - offset;
        let host = base.addr().get();
        match &self.registers {
            // Where both have the same address for it, it is the CPU's to write to as well.
            Some(registers) if registers.device() != host as u64 => {
                let address = NonNull::new((registers.device() as usize + offset) as *mut u8)
                    .ok_or(Mlx5Error::Unsupported { what: "mapped doorbell page" })?;
                let far = Arc::new(Far { len, _page: Arc::clone(self) });
                // SAFETY: the GPU's own mapping of the page, which lives as long as `far`; nobody here follows it.
                Ok(unsafe { Memory::copied(address, far) })
            }
            _ => {
                // SAFETY: `offset` is inside of the page.
                let start = unsafe { base.add(offset) };
                // SAFETY: the library's mapping, which lives as long as the page; registers are written, and read by
                // nobody.
                Ok(unsafe { Memory::foreign(start, len, Box::new(Arc::clone(self))) })
            }
        }
    }
}

/// Registers that the GPU alone reaches: whoever copies finds nothing, and leaves nothing.
struct Far {
    len: usize,
    _page: Arc<Page>,
}

impl CopiedMemory for Far {
    fn len(&self) -> usize {
        self.len
    }
    fn read(&self, _: usize, out: &mut [u8]) {
        out.fill(0);
    }
    fn write(&self, _: usize, _: &[u8]) {}
}
