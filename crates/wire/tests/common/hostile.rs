//! What must hold of any bytes.

use wire::cqe::Cqe;
use wire::doorbell::Doorbell;
use wire::explain;
use wire::wqe::{Segment, Transport, Wqe, receives};

/// Reads `data` as everything that it could be. Panics where an invariant doesn't hold.
pub fn check(data: &[u8]) {
    for transport in [Transport::Rc, Transport::Dc] {
        assert!(!explain::Wqe { bytes: data, transport }.to_string().is_empty());
        let Ok(wqe) = Wqe::parse(data, transport) else { continue };
        assert_eq!(wqe.bytes().len(), usize::from(wqe.ctrl().ds()) * 16);
        assert!(wqe.blocks() as usize * 64 >= wqe.bytes().len());
        let mut end = 16;
        let mut failed = false;
        for placed in wqe.segments() {
            assert!(!failed, "a segment after an error");
            let Ok(placed) = placed else {
                failed = true;
                continue;
            };
            assert_eq!(placed.offset, end, "segments are contiguous");
            end += match placed.segment {
                Segment::AddressVector(_) => 48,
                Segment::MaskedCas8(_) => 32,
                Segment::Inline(payload) => (payload.len() + 4).next_multiple_of(16),
                _ => 16,
            };
            assert!(end <= wqe.bytes().len(), "no segment reaches beyond ds");
        }
        assert!(failed || end == wqe.bytes().len(), "every byte of a WQE is in a segment");
        wqe.warnings(|warning| assert!(!warning.to_string().is_empty()));
    }
    assert!(receives(data).count() <= data.len() / 16);
    if let Some(bytes) = data.first_chunk() {
        assert!(!explain::Cqe::whole(Cqe::from_bytes(*bytes)).to_string().is_empty());
    }
    if let Some(bytes) = data.first_chunk() {
        assert!(!explain::Doorbell(Doorbell::from_bytes(*bytes)).to_string().is_empty());
        assert!(!explain::Record::from_bytes(*bytes).to_string().is_empty());
    }
}
