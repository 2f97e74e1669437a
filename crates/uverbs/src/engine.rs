//! The devices of one process, and the thread that drives them.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softnic::{
    Caps, CqAttr, CqFormat, CqId, Event, LinkEnd, Memory, Nic, NicConfig, PdId, Qpn, SrqId, UarId,
};
use wire::cqe::Cqe;

use crate::channel::Channel;
use crate::config::{DeviceConfig, LinkLayer};
use crate::errno::Errno;
use crate::fabric::{Fabric, Node};
use crate::page::PAGE;
use crate::settings::Settings;
use crate::trace::{RECORDS, TraceFile};
use crate::turn::{self, Rest};

/// Who is told of an object's events, and by which name.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) channel: Arc<Channel>,
    /// What the client calls the object.
    pub(crate) name: u64,
    /// The object's handle.
    pub(crate) handle: u32,
}

/// A peer that this device has a link to.
struct Peer {
    node: Node,
    gone: bool,
}

/// A device that is in use.
pub(crate) struct Port {
    pub(crate) config: DeviceConfig,
    pub(crate) nic: Nic,
    pub(crate) node: Node,
    pub(crate) completions: HashMap<CqId, Listener>,
    pub(crate) cq_errors: HashMap<CqId, Listener>,
    pub(crate) qp_errors: HashMap<Qpn, Listener>,
    pub(crate) srq_events: HashMap<SrqId, Listener>,
    /// Who is told of the port's events.
    pub(crate) watchers: Vec<Weak<Channel>>,
    /// What queue pairs without queues and a domain of their own are given.
    placeholders: Option<Placeholders>,
    /// Doorbell pages by the number that commands give.
    pub(crate) pages: HashMap<u32, UarId>,
    next_page: u32,
    next_umem: u32,
    peers: Vec<Peer>,
    bell: u32,
    reported: usize,
    /// Packets lost on purpose that the trace has.
    dropped: u64,
}

/// What the NIC wants of a queue pair all the same, of those that haven't got it.
#[derive(Clone, Copy)]
pub(crate) struct Placeholders {
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) uar: UarId,
}

impl Port {
    /// Whether the port is down now.
    pub(crate) fn is_down(&self) -> bool {
        self.nic.faults().is_down(now())
    }

    /// A domain, a CQ and a doorbell page that nobody uses, made when they are first needed.
    pub(crate) fn placeholders(&mut self) -> Result<Placeholders, Errno> {
        if let Some(made) = self.placeholders {
            return Ok(made);
        }
        let ring = Memory::zeroed(size_of::<Cqe>()).dma();
        let record = Memory::zeroed(8).dma();
        let attr = CqAttr { ring, log_size: 0, record, collapsed: true, ignore_overrun: true };
        let pd = self.nic.alloc_pd()?;
        let format = CqFormat { wide: false, unready: true };
        let made = self.nic.create_cq_as(attr, format).and_then(|cq| {
            let uar = self.nic.alloc_uar(Memory::zeroed(PAGE).dma());
            uar.inspect_err(|_| drop(self.nic.destroy_cq(cq))).map(|uar| Placeholders {
                pd,
                cq,
                uar,
            })
        });
        let made = made.inspect_err(|_| drop(self.nic.dealloc_pd(pd)))?;
        self.placeholders = Some(made);
        Ok(made)
    }

    /// Gives a doorbell page a number, from 1 on, of 16 bits.
    pub(crate) fn add_page(&mut self, uar: UarId) -> Option<u32> {
        let mut tries = 0..=u32::from(u16::MAX);
        let number = tries.find_map(|_| {
            self.next_page = self.next_page % u32::from(u16::MAX) + 1;
            (!self.pages.contains_key(&self.next_page)).then_some(self.next_page)
        })?;
        self.pages.insert(number, uar);
        Some(number)
    }

    /// A number for registered memory, that no other of the device has had lately.
    pub(crate) fn next_umem(&mut self) -> u32 {
        self.next_umem = self.next_umem.wrapping_add(1).max(1);
        self.next_umem
    }

    /// The address of the NIC that a device's QP number leads to, linked to this one; of nobody if there is none.
    pub(crate) fn route(
        &mut self,
        fabric: &Fabric,
        device: Option<u16>,
        qpn: u32,
    ) -> Result<u16, Errno> {
        let owner = device.and_then(|device| fabric.owner(device, qpn));
        match owner {
            Some(node) if node == self.node => Ok(node.nic()),
            Some(node) => {
                if let Some(end) = fabric.connect(self.node, node)? {
                    self.connected(node, end);
                }
                Ok(node.nic())
            }
            None => {
                self.nic.connect_link(LinkEnd::nowhere(NOBODY));
                Ok(NOBODY)
            }
        }
    }

    fn connected(&mut self, node: Node, end: LinkEnd) {
        self.nic.connect_link(end);
        self.peers.retain(|peer| peer.node.at != node.at);
        self.peers.push(Peer { node, gone: false });
    }

    /// Takes links that others have made, and notes who is gone.
    fn look_around(&mut self, fabric: &Fabric, thoroughly: bool) {
        let bell = fabric.bell(self.node);
        if bell != self.bell
            && let Ok(ends) = fabric.accept(self.node)
        {
            self.bell = bell;
            for (node, end) in ends {
                self.connected(node, end);
            }
        }
        let (me, nic) = (self.node, &mut self.nic);
        self.peers.retain_mut(|peer| {
            if peer.gone && thoroughly {
                // What it had sent was taken in the meantime.
                nic.connect_link(LinkEnd::nowhere(peer.node.nic()));
                nic.forget_targets(peer.node.nic());
                fabric.release(me, peer.node);
                return false;
            }
            if !peer.gone && !fabric.is_there(peer.node, thoroughly) {
                nic.cut_link(peer.node.nic());
                peer.gone = true;
            }
            true
        });
    }

    fn wake_peers(&self, fabric: &Fabric) {
        // What was published comes before the look at who sleeps: see `Fabric::doze`.
        fence(Ordering::SeqCst);
        for peer in self.peers.iter().filter(|peer| !peer.gone) {
            fabric.wake(peer.node);
        }
    }

    fn report(&mut self, fabric: &Fabric) {
        let findings = self.nic.findings();
        for finding in findings.iter().skip(self.reported) {
            // A verbs program may bound what is in flight by other means than its queues' sizes.
            if matches!(finding, softnic::Finding::CqTooSmall { .. }) {
                continue;
            }
            let (name, pid) = (self.config.name(), std::process::id());
            fabric.report(&format!("{name} of process {pid}: {finding}"));
        }
        self.reported = findings.len();
    }
}

/// In the place of an address: that of the process was reported.
const REPORTED: u64 = 1;

/// A NIC address that no node has.
const NOBODY: u16 = u16::MAX;

/// What the thread and the commands share.
pub(crate) struct Shared {
    pub(crate) fabric: Fabric,
    settings: Settings,
    trace: Option<Mutex<TraceFile>>,
    ports: Mutex<Vec<Port>>,
    /// Commands that wait for the ports.
    waiting: AtomicU32,
    stop: AtomicBool,
    /// The thread that has the ports, as the system's library names it; 0 while nobody has them.
    driver: AtomicUsize,
    /// Memory that was gone when it was reached, and not reported yet; 0 if none.
    unmapped: AtomicU64,
}

/// The ports, while a thread has them.
struct Driving<'a> {
    ports: MutexGuard<'a, Vec<Port>>,
    driver: &'a AtomicUsize,
}

impl Deref for Driving<'_> {
    type Target = Vec<Port>;
    fn deref(&self) -> &Vec<Port> {
        &self.ports
    }
}

impl DerefMut for Driving<'_> {
    fn deref_mut(&mut self) -> &mut Vec<Port> {
        &mut self.ports
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.driver.store(0, Ordering::Relaxed);
    }
}

fn this_thread() -> usize {
    // SAFETY: no arguments, no effect.
    unsafe { libc::pthread_self() as usize }
}

/// The devices of one process. The engine's thread starts with the first that is opened.
pub struct Host {
    pub(crate) shared: Arc<Shared>,
    threaded: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Packets a NIC handles before the next NIC's turn.
const BUDGET: u32 = 256;

impl Host {
    /// A host whose devices are driven by a thread of their own.
    #[must_use]
    pub fn new(fabric: Fabric, settings: Settings) -> Self {
        Self::with(fabric, settings, true)
    }

    /// A host whose devices do nothing until [`step`](Self::step) is called.
    #[must_use]
    pub fn stepped(fabric: Fabric, settings: Settings) -> Self {
        Self::with(fabric, settings, false)
    }

    fn with(fabric: Fabric, settings: Settings, threaded: bool) -> Self {
        let trace = settings.trace.as_deref().and_then(|path| {
            let opened = TraceFile::open(path);
            if let Err(error) = &opened {
                let pid = std::process::id();
                fabric.report(&format!(
                    "process {pid} isn't in the trace, which it can't open: {error}"
                ));
            }
            opened.ok().map(Mutex::new)
        });
        let shared = Shared {
            fabric,
            settings,
            trace,
            ports: Mutex::new(Vec::new()),
            waiting: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            driver: AtomicUsize::new(0),
            unmapped: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), threaded, thread: Mutex::new(None) }
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &[DeviceConfig] {
        &self.shared.settings.devices
    }

    /// Opens a device.
    pub(crate) fn open(&self, index: u16) -> Result<DeviceConfig, Errno> {
        let device = self.shared.settings.devices.iter().find(|device| device.index == index);
        let device = *device.ok_or(Errno::ENOENT)?;
        self.shared.with_ports(|ports| {
            if !ports.iter().any(|port| port.config == device) {
                ports.push(self.shared.new_port(device)?);
            }
            Ok::<(), Errno>(())
        })?;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if self.threaded && thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name("gicbench-nic".to_owned());
            *thread = Some(spawned.spawn(move || shared.run()).map_err(|_| Errno::EAGAIN)?);
        }
        Ok(device)
    }

    /// Whether the calling thread has the NICs: what memory it reaches is what they were given. For handlers of signals.
    #[must_use]
    pub fn is_driven_by_this_thread(&self) -> bool {
        self.shared.driver.load(Ordering::Relaxed) == this_thread()
    }

    /// Reports, when there is time, that memory was gone when a NIC reached it. For handlers of signals.
    pub fn unmapped(&self, address: u64) {
        // The first says it all: the program gives memory back too early.
        let _ =
            self.shared.unmapped.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Does what there is to do, once. True if anything was done.
    pub fn step(&self) -> bool {
        let mut ports = self.shared.lock();
        let now = now();
        let executed = self.shared.step(&mut ports, now);
        self.shared.look_around(&mut ports, true);
        executed > 0
    }

    /// Objects that the NICs hold for clients: none when all contexts are closed.
    #[must_use]
    pub fn objects(&self) -> usize {
        let held = |port: &Port| {
            let own = if port.placeholders.is_some() { 3 } else { 0 };
            let listeners = port.completions.len()
                + port.cq_errors.len()
                + port.qp_errors.len()
                + port.srq_events.len();
            port.nic.objects() - own + listeners + port.pages.len()
        };
        self.shared.lock().iter().map(held).sum()
    }

    /// Ends the engine, after the step that it is at, and takes the devices off the fabric.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let deadline = Instant::now() + Duration::from_secs(2);
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let mut ports = self.shared.lock();
        for _ in 0..64 {
            if self.shared.step(&mut ports, now()) == 0 {
                break;
            }
        }
        for port in ports.drain(..) {
            self.shared.traced(|trace| trace.closed(now(), &port.config.name()));
            self.shared.fabric.leave(port.node);
        }
        self.shared.write_trace();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Nanoseconds of the machine's monotonic clock, the same in all processes.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How often the engine looks at who else is there.
const LOOK: u64 = 2_000_000;
/// How often it asks the system who is alive.
const THOROUGH: u64 = 100_000_000;

impl Shared {
    fn lock(&self) -> Driving<'_> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        self.driver.store(this_thread(), Ordering::Relaxed);
        Driving { ports, driver: &self.driver }
    }

    /// Runs `f` between two steps of the engine.
    pub(crate) fn with_ports<R>(&self, f: impl FnOnce(&mut Vec<Port>) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut ports = self.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        f(&mut ports)
    }

    /// Runs `f` on one device, between two steps.
    pub(crate) fn with_port<R>(
        &self,
        device: u16,
        f: impl FnOnce(&mut Port, &Fabric) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.with_ports(|ports| {
            let port = ports.iter_mut().find(|port| port.config.index == device);
            f(port.ok_or(Errno::EIO)?, &self.fabric)
        })
    }

    pub(crate) fn device_of(&self, is_it: impl Fn(&DeviceConfig) -> bool) -> Option<u16> {
        self.settings.devices.iter().find(|device| is_it(device)).map(|device| device.index)
    }

    fn new_port(&self, config: DeviceConfig) -> Result<Port, Errno> {
        let node = self.fabric.join(config.index)?;
        let opened = now();
        let nic = NicConfig {
            id: node.nic(),
            caps: Caps { mtu: config.port.mtu.bytes(), ..CAPS },
            profile: self.settings.profile,
            faults: self.settings.faults_of(config.index).counted_from(opened),
            trace: if self.trace.is_some() { RECORDS } else { 0 },
            qpn_tags: node.tags(),
        };
        self.traced(|trace| trace.opened(opened, &config.name()));
        let mut nic = Nic::new(nic);
        nic.set_far(true);
        nic.set_port(config.port_address());
        // On Ethernet a target's number says whose it is, and its address vector has no LID.
        nic.find_targets(if config.link_layer == LinkLayer::Ethernet { 0 } else { u16::MAX });
        Ok(Port {
            config,
            nic,
            node,
            completions: HashMap::new(),
            cq_errors: HashMap::new(),
            qp_errors: HashMap::new(),
            srq_events: HashMap::new(),
            watchers: Vec::new(),
            placeholders: None,
            pages: HashMap::new(),
            next_page: 0,
            next_umem: 0,
            peers: Vec::new(),
            bell: self.fabric.bell(node),
            reported: 0,
            dropped: 0,
        })
    }

    fn step(&self, ports: &mut [Port], now: u64) -> u32 {
        let mut executed = 0u32;
        for port in ports {
            executed = executed.saturating_add(self.step_port(port, now));
            let mut events = [None; 8];
            loop {
                let mut count = 0;
                port.nic.take_completions(events.len(), |event| {
                    if let Some(slot) = events.get_mut(count) {
                        *slot = Some(event);
                        count += 1;
                    }
                });
                for event in events[..count].iter_mut().filter_map(Option::take) {
                    port.tell(event);
                }
                if count < events.len() {
                    break;
                }
            }
        }
        executed
    }

    fn step_port(&self, port: &mut Port, now: u64) -> u32 {
        let executed = port.nic.step(now, BUDGET).executed;
        self.traced(|trace| {
            let name = port.config.name();
            let missed = port.nic.take_trace(|record| trace.record(&name, &record));
            if missed > 0 {
                trace.missed(now, &name, missed);
            }
            let dropped = port.nic.counters().dropped;
            if dropped > port.dropped {
                trace.dropped(now, &name, dropped - port.dropped);
                port.dropped = dropped;
            }
        });
        match port.nic.wanted_target() {
            Some((address, target)) => {
                self.find(port, address, target);
                executed.saturating_add(1)
            }
            None => executed,
        }
    }

    /// Does what was rung for before the command that is at hand, which a device would have done long ago.
    pub(crate) fn catch_up(&self, port: &mut Port) {
        let around = port.nic.steps_around() + 1;
        let mut idle = 0;
        for _ in 0..64 + around {
            idle = if self.step_port(port, now()) == 0 { idle + 1 } else { 0 };
            if idle == around {
                break;
            }
        }
    }

    /// Tells a port where a DC target, or a datagram's, is.
    fn find(&self, port: &mut Port, address: u16, target: Qpn) {
        let device = self.device_of(|device| {
            let is_named = match device.link_layer {
                LinkLayer::InfiniBand => device.lid() == address,
                LinkLayer::Ethernet => true,
            };
            is_named && self.fabric.owner(device.index, target.0).is_some()
        });
        let nic = port.route(&self.fabric, device, target.0).unwrap_or(NOBODY);
        port.nic.add_target(address, target, nic, nic == NOBODY);
    }

    fn look_around(&self, ports: &mut [Port], thoroughly: bool) {
        let unmapped = self.unmapped.load(Ordering::Relaxed);
        if unmapped > REPORTED {
            self.unmapped.store(REPORTED, Ordering::Relaxed);
            self.fabric.report(&format!(
                "process {}: memory at {unmapped:#x} was unmapped while it was registered: what is written there is lost, \
                 and what is read is zeros",
                std::process::id()
            ));
        }
        for port in ports {
            port.look_around(&self.fabric, thoroughly);
            port.report(&self.fabric);
            let mut events = Vec::new();
            port.nic.take_errors(|event| events.push(event));
            for event in events {
                if let Event::Port { is_up } = event {
                    self.traced(|trace| trace.port(now(), &port.config.name(), is_up));
                    // Who is told may end the process: what is known by then is written.
                    self.write_trace();
                }
                port.tell(event);
            }
            port.flush_events();
        }
        self.write_trace();
    }

    /// Runs `f` on the trace, if there is one.
    fn traced(&self, f: impl FnOnce(&mut TraceFile)) {
        if let Some(trace) = &self.trace {
            f(&mut trace.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn write_trace(&self) {
        self.traced(|trace| {
            trace.flush();
            match trace.take_lost() {
                0 => {}
                lost => {
                    let pid = std::process::id();
                    let line =
                        format!("{lost} lines of process {pid} couldn't be written to the trace");
                    self.fabric.report(&line);
                }
            }
        });
    }

    fn run(&self) {
        turn::prepare();
        let mut turn = turn::Turn::new();
        let (mut looked, mut asked) = (0, 0);
        let mut unannounced = false;
        while !self.stop.load(Ordering::Acquire) {
            if self.waiting.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            let mut ports = self.lock();
            let mut executed = 0u32;
            let mut now = 0;
            // The lock is kept over a few steps that find work.
            for _ in 0..16 {
                now = self::now();
                let progress = self.step(&mut ports, now);
                executed = executed.saturating_add(progress);
                if now >= looked + LOOK {
                    let thoroughly = now >= asked + THOROUGH;
                    asked = if thoroughly { now } else { asked };
                    looked = now;
                    self.look_around(&mut ports, thoroughly);
                }
                if progress == 0 || self.waiting.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            if executed > 0 {
                turn.worked(executed, now);
                unannounced = true;
                continue;
            }
            let rest = turn.rest(now);
            if unannounced && rest != Rest::Spin {
                unannounced = false;
                ports.iter().for_each(|port| port.wake_peers(&self.fabric));
            }
            match rest {
                Rest::Spin => {
                    drop(ports);
                    std::hint::spin_loop();
                }
                Rest::Yield => {
                    drop(ports);
                    std::thread::yield_now();
                }
                Rest::Nap(most) => {
                    let nodes: Vec<Node> = ports.iter().map(|port| port.node).collect();
                    drop(ports);
                    self.fabric.doze(&nodes, most, || {
                        let executed = self.step(&mut self.lock(), self::now());
                        unannounced |= executed > 0;
                        executed == 0
                    });
                }
            }
        }
    }
}

/// What one process's share of a device holds; the MTU is the port's.
const CAPS: Caps = Caps {
    max_qps: 1024,
    max_dcts: 256,
    max_dc_contexts: 1024,
    max_srqs: 1024,
    max_cqs: 1025,
    max_mrs: 65_536,
    max_pds: 4097,
    max_uars: 4097,
    log_max_sq_blocks: 15,
    max_outstanding: 512,
    max_message: 1 << 30,
    max_rd_atomic: 16,
    mtu: 4096,
};
