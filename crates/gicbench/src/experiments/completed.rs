//! How much a NIC has completed: its own count, or the queues' indices where it doesn't tell.

use mini_gda::Gda;
use rdma::Nic;

use super::rig::broke;
use crate::point::PointError;

/// A reading, to be compared with an earlier one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Completed {
    /// Operations, by who counts them.
    Operations(u64),
    /// Blocks that were posted, and those of them that are known to be completed. An operation takes one or more.
    Blocks {
        /// Posted.
        posted: u64,
        /// Completed.
        completed: u64,
    },
}

impl Completed {
    /// Of the side that posts.
    ///
    /// # Errors
    /// The NIC is gone, or the indices can't be read.
    pub fn read(near: &dyn Nic, gda: &Gda) -> Result<Self, PointError> {
        match near.completed().map_err(broke)? {
            Some(operations) => Ok(Self::Operations(operations)),
            None => {
                let (posted, completed) = gda.blocks_posted_and_completed().map_err(broke)?;
                Ok(Self::Blocks { posted, completed })
            }
        }
    }

    /// Operations missing, or done too often, where `expected` were since `before` and nothing is outstanding.
    pub fn wrong(self, before: Self, expected: u64) -> u64 {
        match (before, self) {
            (Self::Operations(before), Self::Operations(now)) => {
                expected.abs_diff(now.wrapping_sub(before))
            }
            (Self::Blocks { posted: before, .. }, Self::Blocks { posted, completed }) => {
                (before + expected).saturating_sub(posted) + posted.abs_diff(completed)
            }
            // Readings of different kinds are of different NICs: all of it is unaccounted for.
            _ => expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_outstanding_is_wrong() {
        let blocks = |posted, completed| Completed::Blocks { posted, completed };
        for (before, now, expected, wrong) in [
            (Completed::Operations(5), Completed::Operations(15), 10, 0),
            (Completed::Operations(5), Completed::Operations(14), 10, 1),
            (Completed::Operations(5), Completed::Operations(16), 10, 1),
            (blocks(5, 5), blocks(15, 15), 10, 0),
            // Operations of two blocks.
            (blocks(0, 0), blocks(20, 20), 10, 0),
            (blocks(0, 0), blocks(20, 18), 10, 2),
            (blocks(0, 0), blocks(9, 9), 10, 1),
            (blocks(0, 0), Completed::Operations(10), 10, 10),
        ] {
            assert_eq!(now.wrong(before, expected), wrong, "{now:?} after {before:?}");
        }
    }
}
