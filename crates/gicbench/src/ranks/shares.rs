//! CPUs of ranks on one machine: who may use the same ones shares them out, so that no two spin on one.

use super::MemberRecord;

/// Leaves each rank with CPUs that no other rank of its machine uses, as far as there are enough. True if there are not.
pub(super) fn share(members: &mut [MemberRecord]) -> bool {
    let mut crowded = false;
    for at in 0..members.len() {
        // The ranks that may use one of this rank's CPUs, by number; the first of them deals for all.
        let overlaps = |other: &MemberRecord| {
            other.host == members[at].host
                && other.cpus.iter().any(|cpu| members[at].cpus.contains(cpu))
        };
        let group: Vec<usize> = (0..members.len()).filter(|i| overlaps(&members[*i])).collect();
        if group.first() != Some(&at) || group.len() < 2 {
            continue;
        }
        let same = group.iter().all(|i| members[*i].cpus == members[at].cpus);
        let cpus = members[at].cpus.clone();
        // Masks that overlap and differ were somebody's plan.
        if !same || cpus.len() < group.len() {
            crowded = true;
            continue;
        }
        let (each, more) = (cpus.len() / group.len(), cpus.len() % group.len());
        let mut cpus = cpus.into_iter();
        for (nth, i) in group.into_iter().enumerate() {
            let count = each + usize::from(nth < more);
            members[i].cpus = cpus.by_ref().take(count).collect();
        }
    }
    crowded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u32, host: &str, cpus: &[usize]) -> MemberRecord {
        MemberRecord { rank, host: host.to_owned(), pid: 1, cpus: cpus.to_vec(), gpu: None }
    }

    #[test]
    fn ranks_of_one_machine_share_its_cpus_out() {
        for (given, expected, crowded) in [
            (vec![("a", vec![0, 1]), ("a", vec![0, 1])], vec![vec![0], vec![1]], false),
            (
                vec![("a", vec![0, 1, 2, 3, 4]), ("a", vec![0, 1, 2, 3, 4])],
                vec![vec![0, 1, 2], vec![3, 4]],
                false,
            ),
            // Different machines have CPUs of the same numbers.
            (vec![("a", vec![0, 1]), ("b", vec![0, 1])], vec![vec![0, 1], vec![0, 1]], false),
            // The launcher bound them.
            (vec![("a", vec![0]), ("a", vec![1])], vec![vec![0], vec![1]], false),
            // Not enough for each.
            (vec![("a", vec![0]), ("a", vec![0])], vec![vec![0], vec![0]], true),
            (
                vec![("a", vec![0, 1]), ("b", vec![0]), ("a", vec![0, 1])],
                vec![vec![0], vec![0], vec![1]],
                false,
            ),
            (vec![("a", vec![0, 1]), ("a", vec![1, 2])], vec![vec![0, 1], vec![1, 2]], true),
        ] {
            let named = (0..).zip(&given);
            let mut members: Vec<_> =
                named.map(|(rank, (host, cpus))| member(rank, host, cpus)).collect();
            assert_eq!(share(&mut members), crowded, "{given:?}");
            let shares: Vec<_> = members.into_iter().map(|member| member.cpus).collect();
            assert_eq!(shares, expected, "{given:?}");
        }
    }
}
