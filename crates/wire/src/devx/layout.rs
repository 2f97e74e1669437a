//! Where what lies, a module a structure.

use super::Field;

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $at:literal, $bits:literal;)*) => {$(
        $(#[$doc])*
        pub const $name: Field = Field::new($at, $bits);
    )*};
}

fields! {
    /// Every command: what it is.
    OPCODE = 0x00, 16;
    /// Every command: whose it is; the kernel writes it.
    UID = 0x10, 16;
    /// Every command: which kind of it.
    OP_MOD = 0x30, 16;
    /// Every answer: how it ended, as [`Status`](super::Status) has it.
    STATUS = 0x00, 8;
    /// Every answer: which check failed. Firmware's own numbers, which aren't published.
    SYNDROME = 0x20, 32;
    /// Commands about one object, and answers of those that make one: its number.
    NUMBER = 0x48, 24;
}

/// Bytes of a command about one object, and of an answer with nothing else in it.
pub const SHORT: usize = 16;

/// `QUERY_HCA_CAP`.
pub mod query_hca_cap {
    /// Bytes of the answer.
    pub const OUT: usize = 16 + 4096;
    /// Bit that the page begins at.
    pub const CAPABILITY: u32 = 0x80;
    /// Pages, as `op_mod >> 1` names them; bit 0 of it is 1 for what is in force, 0 for the most that may be.
    pub mod page {
        /// The device.
        pub const GENERAL: u32 = 0;
        /// On-demand paging.
        pub const ODP: u32 = 2;
        /// Atomics.
        pub const ATOMIC: u32 = 3;
        /// RoCE.
        pub const ROCE: u32 = 4;
        /// Flow tables of the function.
        pub const NIC_FLOW_TABLE: u32 = 7;
        /// Flow tables of the switch.
        pub const ESWITCH_FLOW_TABLE: u32 = 8;
        /// The switch.
        pub const ESWITCH: u32 = 9;
        /// Rates and shares.
        pub const QOS: u32 = 0xc;
        /// Memory of the device's own.
        pub const DEVICE_MEMORY: u32 = 0xf;
        /// Encryption.
        pub const CRYPTO: u32 = 0x1a;
        /// The device, continued.
        pub const GENERAL_2: u32 = 0x20;
    }
}

/// The general capabilities (`cmd_hca_cap`).
pub mod cap {
    use super::Field;
    fields! {
        /// There is a second page.
        HCA_CAP_2 = 0x20, 1;
        /// Number of the function.
        VHCA_ID = 0x30, 16;
        /// Deepest send queue, log2 of blocks.
        LOG_MAX_QP_SZ = 0x88, 8;
        /// Queue pairs, log2.
        LOG_MAX_QP = 0x9b, 5;
        /// Deepest CQ, log2.
        LOG_MAX_CQ_SZ = 0xc8, 8;
        /// CQs, log2.
        LOG_MAX_CQ = 0xdb, 5;
        /// Keys, log2.
        LOG_MAX_MKEY = 0xea, 6;
        /// Event queues, log2.
        LOG_MAX_EQ = 0xfc, 4;
        /// Reads and atomics in flight of a DCI, log2.
        LOG_MAX_RA_REQ_DC = 0x12a, 6;
        /// The same at a DCT.
        LOG_MAX_RA_RES_DC = 0x13a, 6;
        /// Reads and atomics in flight of a QP as requester, log2.
        LOG_MAX_RA_REQ_QP = 0x14a, 6;
        /// The same as responder.
        LOG_MAX_RA_RES_QP = 0x15a, 6;
        /// GIDs: 8 * 2^n.
        GID_TABLE_SIZE = 0x170, 16;
        /// Partition keys: 128 * 2^n.
        PKEY_TABLE_SIZE = 0x190, 16;
        /// Delay of acknowledgements: 4.096 us * 2^n.
        LOCAL_CA_ACK_DELAY = 0x1ab, 5;
        /// 0: InfiniBand, 1: Ethernet.
        PORT_TYPE = 0x1b6, 2;
        /// Ports.
        NUM_PORTS = 0x1b8, 8;
        /// Longest message, log2 of bytes.
        LOG_MAX_MSG = 0x1c3, 5;
        /// Version of CQEs.
        CQE_VERSION = 0x1fc, 4;
        /// Address vectors of 16 bytes are understood.
        COMPACT_ADDRESS_VECTOR = 0x200, 1;
        /// There are DCTs.
        DCT = 0x21a, 1;
        /// There is RoCE.
        ROCE = 0x21d, 1;
        /// There are atomics.
        ATOMIC = 0x21e, 1;
        /// The overrun of a CQ can be ignored.
        CQ_OI = 0x220, 1;
        /// CQs can be resized.
        CQ_RESIZE = 0x221, 1;
        /// There are RC queue pairs.
        RC = 0x23f, 1;
        /// Doorbell pages of 4 KiB.
        UAR_4K = 0x240, 1;
        /// Smallest page, log2 of bytes.
        LOG_PG_SZ = 0x258, 8;
        /// There is BlueFlame.
        BF = 0x260, 1;
        /// A BlueFlame register, log2 of bytes, both halves.
        LOG_BF_REG_SIZE = 0x26b, 5;
        /// Longest WQE of a send queue, bytes.
        MAX_WQE_SZ_SQ = 0x290, 16;
        /// Longest WQE of a receive queue, bytes.
        MAX_WQE_SZ_RQ = 0x2b0, 16;
        /// Longest WQE of a DCI, bytes.
        MAX_WQE_SZ_SQ_DC = 0x2d0, 16;
        /// Protection domains, log2.
        LOG_MAX_PD = 0x32b, 5;
        /// Kinds of general objects; bit 4: contexts, bit 5: registered memory.
        GENERAL_OBJ_TYPES = 0x400, 64;
        /// Clock, MHz.
        DEVICE_FREQUENCY_MHZ = 0x4c0, 32;
        /// Clock, kHz.
        DEVICE_FREQUENCY_KHZ = 0x4e0, 32;
        /// Doorbell pages in one of the system's.
        NUM_OF_UARS_PER_PAGE = 0x520, 32;
        /// Connections that DCTs keep, log2.
        LOG_MAX_DCT_CONNECTIONS = 0x57b, 5;
        /// Largest atomic of a QP, log2 of bytes.
        LOG_MAX_ATOMIC_SIZE_QP = 0x580, 8;
        /// Largest atomic of a DC, log2 of bytes.
        LOG_MAX_ATOMIC_SIZE_DC = 0x598, 8;
    }
}

/// The capabilities of atomics (`atomic_caps`).
pub mod atomic_cap {
    use super::Field;
    fields! {
        /// Bit 0: compare-and-swap, 1: fetch-and-add, 2 and 3: the same with masks.
        ATOMIC_OPERATIONS = 0x90, 16;
        /// Sizes of QPs' atomics: bit n is 2^n bytes.
        ATOMIC_SIZE_QP = 0xb0, 16;
        /// Sizes of DCs' atomics.
        ATOMIC_SIZE_DC = 0xd0, 16;
    }
}

/// The capabilities of RoCE (`roce_cap`).
pub mod roce_cap {
    use super::Field;
    fields! {
        /// Bit 0: v1, bit 2: v2.
        ROCE_VERSION = 0x98, 8;
        /// UDP port of RoCE v2.
        R_ROCE_DEST_UDP_PORT = 0xb0, 16;
        /// Last source port.
        R_ROCE_MAX_SRC_UDP_PORT = 0xc0, 16;
        /// First source port.
        R_ROCE_MIN_SRC_UDP_PORT = 0xd0, 16;
        /// GIDs.
        ROCE_ADDRESS_TABLE_SIZE = 0xf0, 16;
    }
}

/// `QUERY_ROCE_ADDRESS`.
pub mod query_roce_address {
    use super::Field;
    /// Bytes of the answer.
    pub const OUT: usize = 16 + 32;
    fields! {
        /// Which GID.
        INDEX = 0x40, 16;
        /// Of which port; 0 is the function's own.
        VHCA_PORT_NUM = 0x5c, 4;
        /// The answer's GID, its upper half.
        GID_HIGH = 0x80, 64;
        /// Its lower half.
        GID_LOW = 0xc0, 64;
        /// MAC address, upper 16 bits.
        MAC_HIGH = 0x110, 16;
        /// MAC address, lower 32 bits.
        MAC_LOW = 0x120, 32;
        /// 0: IPv4, 1: IPv6.
        L3_TYPE = 0x154, 4;
        /// 0: v1, 2: v2.
        ROCE_VERSION = 0x158, 8;
    }
}

/// `QUERY_HCA_VPORT_CONTEXT`: a port of InfiniBand.
pub mod query_hca_vport_context {
    use super::Field;
    /// Bytes of the answer.
    pub const OUT: usize = 16 + 512;
    fields! {
        /// Of another function.
        OTHER_VPORT = 0x40, 1;
        /// Which port; 0 is the function's own.
        PORT_NUM = 0x4c, 4;
        /// The answer: physical state; 5: link up.
        PORT_PHYSICAL_STATE = 0x190, 4;
        /// The port's state; 4: active.
        PORT_STATE = 0x198, 4;
        /// The function's.
        VPORT_STATE = 0x19c, 4;
        /// GUIDs.
        SYSTEM_IMAGE_GUID = 0x1c0, 64;
        /// The port's.
        PORT_GUID = 0x200, 64;
        /// The node's.
        NODE_GUID = 0x240, 64;
        /// Its LID.
        LID = 0x360, 16;
        /// The subnet manager's.
        SM_LID = 0x380, 16;
    }
}

/// `CREATE_CQ`.
pub mod create_cq {
    use super::Field;
    /// Bytes, without a list of pages.
    pub const IN: usize = 0x110;
    /// Bit that the [context](super::cqc) begins at.
    pub const CQC: u32 = 0x80;
    fields! {
        /// Where in the registered memory the entries lie.
        CQ_UMEM_OFFSET = 0x280, 64;
        /// Which registered memory.
        CQ_UMEM_ID = 0x2c0, 32;
        /// The entries lie in registered memory.
        CQ_UMEM_VALID = 0x2e0, 1;
    }
}

/// `QUERY_CQ`.
pub mod query_cq {
    /// Bytes of the answer, without a list of pages.
    pub const OUT: usize = 0x110;
    /// Bit that the [context](super::cqc) begins at.
    pub const CQC: u32 = 0x80;
}

/// A completion queue's context.
pub mod cqc {
    use super::Field;
    fields! {
        /// 0: well, 9: overrun, 10: write failed.
        STATUS = 0x00, 4;
        /// The doorbell record lies in registered memory.
        DBR_UMEM_VALID = 0x06, 1;
        /// 0: 64 bytes an entry, 1: 128.
        CQE_SZ = 0x08, 3;
        /// Collapsed.
        CC = 0x0b, 1;
        /// Overrun is ignored.
        OI = 0x0e, 1;
        /// Compressed.
        CQE_COMP_EN = 0x11, 1;
        /// 6: armed for solicited, 9: armed, 10: fired.
        ST = 0x14, 4;
        /// Which registered memory the doorbell record is in.
        DBR_UMEM_ID = 0x20, 32;
        /// Where in their first page the entries begin, in units of 64 bytes.
        PAGE_OFFSET = 0x54, 6;
        /// log2 of entries.
        LOG_CQ_SIZE = 0x63, 5;
        /// Doorbell page.
        UAR_PAGE = 0x68, 24;
        /// Event queue.
        C_EQN = 0xb8, 8;
        /// Pages, log2 of 4 KiB.
        LOG_PAGE_SIZE = 0xc3, 5;
        /// What the device knows of the consumer.
        CONSUMER_COUNTER = 0x148, 24;
        /// Entries written.
        PRODUCER_COUNTER = 0x168, 24;
        /// The doorbell record's address, or its offset in registered memory.
        DBR_ADDR = 0x1c0, 64;
    }
}

/// `CREATE_QP`.
pub mod create_qp {
    use super::Field;
    /// Bytes, without a list of pages.
    pub const IN: usize = 0x110;
    /// Bit that the [context](super::qpc) begins at.
    pub const QPC: u32 = 0xc0;
    fields! {
        /// Where in the registered memory the queues begin.
        WQ_UMEM_OFFSET = 0x800, 64;
        /// Which registered memory.
        WQ_UMEM_ID = 0x840, 32;
        /// The queues lie in registered memory.
        WQ_UMEM_VALID = 0x860, 1;
    }
}

/// `RST2INIT_QP` and its like: the QP's [number](super::NUMBER), and its context.
pub mod modify_qp {
    use super::Field;
    /// Bytes.
    pub const IN: usize = 0x110;
    /// Bit that the [context](super::qpc) begins at.
    pub const QPC: u32 = 0xc0;
    fields! {
        /// Which optional parameters count.
        OPT_PARAM_MASK = 0x80, 32;
    }
    /// Bits of the mask.
    pub mod opt {
        /// The peer may read.
        pub const RRE: u32 = 1 << 1;
        /// The peer may do atomics.
        pub const RAE: u32 = 1 << 2;
        /// The peer may write.
        pub const RWE: u32 = 1 << 3;
        /// The partition key's index.
        pub const PKEY_INDEX: u32 = 1 << 4;
        /// The RNR timer.
        pub const RNR_TIMEOUT: u32 = 1 << 6;
    }
}

/// `QUERY_QP`.
pub mod query_qp {
    /// Bytes of the answer, without a list of pages.
    pub const OUT: usize = 0x110;
    /// Bit that the [context](super::qpc) begins at.
    pub const QPC: u32 = 0xc0;
}

/// A queue pair's context.
pub mod qpc {
    use super::Field;
    /// Bit that the [primary path](super::ads) begins at.
    pub const PRIMARY_PATH: u32 = 0xc0;
    fields! {
        /// State: 0 reset, 1 init, 2 RTR, 3 RTS, 6 error.
        STATE = 0x00, 4;
        /// Service: see [`service`].
        ST = 0x08, 8;
        /// Path migration; 3: migrated.
        PM_STATE = 0x13, 2;
        /// Protection domain.
        PD = 0x28, 24;
        /// Path MTU: 1 is 256 bytes, 5 is 4096.
        MTU = 0x40, 3;
        /// Longest message, log2 of bytes.
        LOG_MSG_MAX = 0x43, 5;
        /// log2 of receive WQEs.
        LOG_RQ_SIZE = 0x49, 4;
        /// log2 of a receive WQE's bytes, less 4.
        LOG_RQ_STRIDE = 0x4d, 3;
        /// There is no send queue.
        NO_SQ = 0x50, 1;
        /// log2 of the send queue's blocks.
        LOG_SQ_SIZE = 0x51, 4;
        /// Doorbell page.
        UAR_PAGE = 0x68, 24;
        /// 0: the doorbell record is written before the register; others do without.
        SEND_DBR_MODE = 0x80, 2;
        /// What its completions carry.
        USER_INDEX = 0x88, 24;
        /// Pages, log2 of 4 KiB.
        LOG_PAGE_SIZE = 0xa3, 5;
        /// The peer's number.
        REMOTE_QPN = 0xa8, 24;
        /// Requests of an acknowledgement: each 2^n packets.
        LOG_ACK_REQ_FREQ = 0x380, 4;
        /// Reads and atomics in flight as requester, log2.
        LOG_SRA_MAX = 0x388, 3;
        /// Timeouts before giving up.
        RETRY_COUNT = 0x38d, 3;
        /// RNR NAKs before giving up.
        RNR_RETRY = 0x390, 3;
        /// Whether it does reads and atomics; see [`FRE`].
        FRE = 0x394, 1;
        /// First sequence number that is sent.
        NEXT_SEND_PSN = 0x3c8, 24;
        /// Where sends complete.
        CQN_SND = 0x3e8, 24;
        /// Reads and atomics in flight as responder, log2.
        LOG_RRA_MAX = 0x488, 3;
        /// Atomics; 3: up to 64 bits.
        ATOMIC_MODE = 0x48c, 4;
        /// The peer may read.
        RRE = 0x490, 1;
        /// The peer may write.
        RWE = 0x491, 1;
        /// The peer may do atomics.
        RAE = 0x492, 1;
        /// Where in their first page the queues begin, in units of 64 bytes.
        PAGE_OFFSET = 0x494, 6;
        /// RNR timer.
        MIN_RNR_NAK = 0x4a3, 5;
        /// First sequence number that is expected.
        NEXT_RCV_PSN = 0x4a8, 24;
        /// Where receives complete.
        CQN_RCV = 0x4e8, 24;
        /// The doorbell record's address, or its offset in registered memory.
        DBR_ADDR = 0x500, 64;
        /// 0: a queue of its own, 1: a shared one, 3: none.
        RQ_TYPE = 0x565, 3;
        /// The shared one.
        SRQN = 0x568, 24;
        /// Blocks that the device has fetched.
        HW_SQ_WQEBB_COUNTER = 0x5a0, 16;
        /// Blocks that it was told of.
        SW_SQ_WQEBB_COUNTER = 0x5b0, 16;
        /// Receives that the device has used.
        HW_RQ_COUNTER = 0x5c0, 32;
        /// Of a DCI and a DCT: what both must know.
        DC_ACCESS_KEY = 0x640, 64;
        /// The doorbell record lies in registered memory.
        DBR_UMEM_VALID = 0x683, 1;
        /// Which.
        DBR_UMEM_ID = 0x720, 32;
    }
    /// Services, as `st` has them.
    pub mod service {
        /// Reliable connection.
        pub const RC: u32 = 0;
        /// Dynamically connected initiator.
        pub const DCI: u32 = 5;
    }
    /// Kinds of receive queue, as `rq_type` has them.
    pub mod rq_type {
        /// A queue of its own.
        pub const REGULAR: u32 = 0;
        /// A shared one.
        pub const SHARED: u32 = 1;
        /// None.
        pub const NONE: u32 = 3;
    }
    /// `pm_state` of a path that doesn't migrate.
    pub const MIGRATED: u32 = 3;
    /// `atomic_mode` of operands up to 64 bits.
    pub const ATOMIC_64: u32 = 3;
}

/// An address path.
pub mod ads {
    use super::Field;
    fields! {
        /// The partition key's index.
        PKEY_INDEX = 0x10, 16;
        /// A global route header is sent.
        GRH = 0x28, 1;
        /// Lower bits of the local LID.
        MLID = 0x29, 7;
        /// The peer's LID; on Ethernet the UDP source port is elsewhere.
        RLID = 0x30, 16;
        /// The wait for an acknowledgement: 4.096 us * 2^n.
        ACK_TIMEOUT = 0x40, 5;
        /// Which of the port's GIDs is sent.
        SRC_ADDR_INDEX = 0x48, 8;
        /// Hops.
        HOP_LIMIT = 0x58, 8;
        /// Traffic class.
        TCLASS = 0x64, 8;
        /// Flow label.
        FLOW_LABEL = 0x6c, 20;
        /// The peer's GID, its upper half.
        RGID_HIGH = 0x80, 64;
        /// Its lower half.
        RGID_LOW = 0xc0, 64;
        /// On Ethernet: upper six bits of the traffic class.
        DSCP = 0x10a, 6;
        /// On Ethernet: source port.
        UDP_SPORT = 0x110, 16;
        /// On Ethernet: priority.
        ETH_PRIO = 0x121, 3;
        /// On InfiniBand: service level.
        SL = 0x124, 4;
        /// The port.
        VHCA_PORT_NUM = 0x128, 8;
        /// The peer's MAC address, upper 16 bits.
        RMAC_HIGH = 0x130, 16;
        /// Lower 32 bits.
        RMAC_LOW = 0x140, 32;
    }
}

/// `CREATE_DCT`.
pub mod create_dct {
    /// Bytes.
    pub const IN: usize = 0x80;
    /// Bit that the [context](super::dctc) begins at.
    pub const DCTC: u32 = 0x80;
}

/// `QUERY_DCT`.
pub mod query_dct {
    /// Bytes of the answer.
    pub const OUT: usize = 0x80;
    /// Bit that the [context](super::dctc) begins at.
    pub const DCTC: u32 = 0x80;
}

/// A DC target's context.
pub mod dctc {
    use super::Field;
    fields! {
        /// 0: active, 1: draining, 2: drained.
        STATE = 0x04, 4;
        /// What its completions carry.
        USER_INDEX = 0x28, 24;
        /// Where receives complete.
        CQN = 0x48, 24;
        /// Atomics; 3: up to 64 bits.
        ATOMIC_MODE = 0x68, 4;
        /// Initiators may read.
        RRE = 0x6c, 1;
        /// They may write.
        RWE = 0x6d, 1;
        /// They may do atomics.
        RAE = 0x6e, 1;
        /// RNR timer.
        MIN_RNR_NAK = 0x93, 5;
        /// The shared receive queue.
        SRQN = 0xa8, 24;
        /// Protection domain.
        PD = 0xc8, 24;
        /// Traffic class.
        TCLASS = 0xe0, 8;
        /// Flow label.
        FLOW_LABEL = 0xec, 20;
        /// What initiators must know.
        DC_ACCESS_KEY = 0x100, 64;
        /// Path MTU: 1 is 256 bytes, 5 is 4096.
        MTU = 0x145, 3;
        /// The port.
        PORT = 0x148, 8;
        /// The partition key's index.
        PKEY_INDEX = 0x150, 16;
        /// Which of the port's GIDs it is found by.
        MY_ADDR_INDEX = 0x168, 8;
        /// Hops.
        HOP_LIMIT = 0x178, 8;
    }
}
