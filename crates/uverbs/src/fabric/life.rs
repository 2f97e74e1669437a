//! Whether a process is still there.

use std::sync::atomic::Ordering::Relaxed;

use super::layout::NodeEntry;

/// State and start time of a process, from the text of its `stat`. The name in it may hold anything.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The 22nd field; the state is the 3rd.
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

fn look(pid: &str) -> Option<(char, u64)> {
    state_and_start(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// When this process started.
pub(super) fn start_of_this() -> u64 {
    look("self").map_or(0, |(_, start)| start)
}

/// Whether the process that a node belongs to runs.
pub(super) fn is_alive(node: &NodeEntry) -> bool {
    let found = look(&node.pid.load(Relaxed).to_string());
    found.is_some_and(|(state, start)| {
        !matches!(state, 'Z' | 'X' | 'x') && start == node.start.load(Relaxed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_start_are_found_behind_any_name() {
        let rest = "R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        for name in ["cat", "a b", ") R 1 (", "x) S 2 3"] {
            assert_eq!(state_and_start(&format!("7 ({name}) {rest}")), Some(('R', 4711)), "{name}");
        }
        for broken in ["", "7 cat", "7 (cat)", "7 (cat) R 1 2"] {
            assert_eq!(state_and_start(broken), None, "{broken}");
        }
        assert!(start_of_this() > 0);
    }
}
