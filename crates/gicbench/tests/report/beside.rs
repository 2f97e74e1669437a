//! The tables of the libraries: who stands beside whom, what is compared, and what isn't.

use super::unusual::HOSTILE;
use super::*;

/// A measurement of an 8-byte put, in µs.
struct Put {
    transport: &'static str,
    /// Its parameters beside operation and size, as `name=value` words.
    at: &'static str,
    metric: &'static str,
    p50: f64,
    details: Value,
}

/// What a row says that it is safe for; `sharing` as the two kinds of rows call it.
fn safe(sharing: &str, promises: &str) -> Value {
    let [scope, order, room, completion]: [&str; 4] =
        promises.split(' ').collect::<Vec<_>>().try_into().expect("four words");
    json!({sharing: scope, "order_scope": order, "space_check": room, "completion_scope": completion})
}

fn with(mut details: Value, more: Value) -> Value {
    let fields = details.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    details
}

/// This project's details.
fn ours(promises: &str) -> Value {
    safe("sharing_scope", promises)
}

/// A library's.
fn theirs(promises: &str) -> Value {
    let library = json!({"library": "The Library", "library_version": "1.2.3",
        "library_version_known": true, "nic_findings": 0});
    with(safe("sharing", promises), library)
}

fn step(promises: &str, leaves_out: &str, base: &str) -> Value {
    let step = with(theirs(promises), json!({"leaves_out": leaves_out}));
    if base.is_empty() { step } else { with(step, json!({"step_of": base})) }
}

/// On a GPU with a NIC in software: issue and enqueue are real.
fn row(put: &Put) -> Value {
    row_like(&shown(), "issue_us", |row| {
        let is_own = matches!(put.metric, "issue_us" | "enqueue_us");
        row["transport"] = json!(put.transport);
        row["submitter"] = json!("cuda");
        row["nic"] = json!("soft-gpu");
        row["metric"] = json!(put.metric);
        row["parameters"] = json!({"op": "put", "payload": 8, "profile": "none", "ops": 10,
            "warmup": 0, "duration_s": null});
        for (name, value) in put.at.split_whitespace().filter_map(|word| word.split_once('=')) {
            row["parameters"][name] = json!(value);
        }
        row["p50"] = json!(put.p50);
        row["p99"] = json!(null);
        row["stand_in"] = json!(!is_own);
        row["stand_in_why"] = if is_own { json!(null) } else { json!("software NIC on the GPU") };
        row["unsafe_mode"] = json!(null);
        row["threads"] = json!(null);
        row["reference"] = json!(null);
        row["details"] = put.details.clone();
    })
}

fn put(
    transport: &'static str,
    at: &'static str,
    metric: &'static str,
    p50: f64,
    details: Value,
) -> Value {
    row(&Put { transport, at, metric, p50, details })
}

const EXCLUSIVE: &str = "order=gpu-release sharing=exclusive cq=collapsed conn=rc";
const SHARED: &str = "order=gpu-release sharing=thread cq=collapsed conn=rc";

/// mini-gda, exclusive and shared.
fn mini_gda() -> Vec<Value> {
    vec![
        put("mini-gda", EXCLUSIVE, "issue_us", 0.5, ours("exclusive gpu yes one")),
        put("mini-gda", EXCLUSIVE, "put_completion_us", 2.0, ours("exclusive gpu yes one")),
        put("mini-gda", SHARED, "issue_us", 1.0, ours("gpu gpu yes one")),
        put("mini-gda", SHARED, "put_completion_us", 4.0, ours("gpu gpu yes one")),
    ]
}

fn all(parts: &[Vec<Value>]) -> Value {
    with_rows(parts.concat())
}

/// The rows of a table, as cells, with its head first. None where there is no such table.
fn table(text: &str, title: &str) -> Option<Vec<Vec<String>>> {
    let (_, rest) = text.split_once(&format!("**{title}.**"))?;
    let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).filter(|line| !line.contains("---|"));
    let cells = |line: &str| {
        let inner = line.trim_matches('|');
        inner.split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    Some(rows.map(cells).collect())
}

/// The cells of the line that begins with some words, under the heads of some columns.
fn cells(text: &str, title: &str, line: &[&str], columns: &[&str]) -> Vec<String> {
    let table = table(text, title).unwrap_or_else(|| panic!("no {title}: {text}"));
    let (head, rows) = table.split_first().expect("a head");
    let row = rows
        .iter()
        .find(|row| row.iter().zip(line).all(|(cell, word)| cell == word))
        .unwrap_or_else(|| panic!("no line {line:?}: {text}"));
    let column = |name: &&str| {
        let place = head.iter().position(|head| head == name);
        row[place.unwrap_or_else(|| panic!("no column {name}: {head:?}"))].clone()
    };
    columns.iter().map(column).collect()
}

const PATHS: &str = "The paths, GPU-submitted";
const PROXIED: &str = "The paths, proxied";
const STEPS: &str = "What each step costs, GPU-submitted";
const LIKE: &str = "The same choices in the smallest code, GPU-submitted";
const RATIOS: &[&str] =
    &["over mini-gda's issue", "over mini-gda's put + completion", "what differs"];
const PLAINEST: &str = "over exclusive mini-gda's, GPU-scope release";

#[test]
fn a_ratio_is_over_equal_promises_and_says_so_where_there_are_none() {
    for (promises, expected) in [
        ("gpu gpu yes one", ["3.00", "2.00 S", "nothing"]),
        ("exclusive gpu yes one", ["6.00", "4.00 S", "nothing"]),
        // What a completion covers isn't in the time of an issue.
        (
            "gpu gpu yes all",
            ["3.00", "unequal: 2.00 S", "put + completion alone: completion all, not one"],
        ),
        (
            "cta gpu yes all",
            [
                "unequal: 6.00",
                "unequal: 4.00 S",
                "sharing cta, not exclusive · put + completion also: completion all, not one",
            ],
        ),
        // The nearest, not the plainest.
        ("gpu gpu no one", ["unequal: 3.00", "unequal: 2.00 S", "room checked no, not yes"]),
        // Of equally near ones, the fastest.
        (
            "cta system no one",
            [
                "unequal: 6.00",
                "unequal: 4.00 S",
                "sharing cta, not exclusive; order system, not gpu; room checked no, not yes",
            ],
        ),
    ] {
        let library = vec![
            put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises)),
            put("gdaki", "variant=gpu", "put_completion_us", 8.0, theirs(promises)),
            put("gdaki", "variant=gpu", "round_trip_us", 9.0, theirs(promises)),
        ];
        let record = all(&[mini_gda(), library]);
        let text = markdown(&record);
        let line = ["gdaki", "gpu"];
        assert_eq!(cells(&text, PATHS, &line, RATIOS), expected, "{promises}");
        // The same whatever is promised, and of mini-gda's own lines, too.
        assert_eq!(cells(&text, PATHS, &line, &[PLAINEST]), ["6.00"], "{promises}");
        let ours = |variant| cells(&text, PATHS, &["mini-gda", variant], &[PLAINEST, RATIOS[0]]);
        assert_eq!([ours("exclusive"), ours("thread")], [["1.00", "–"], ["2.00", "–"]]);
        let times = ["safe for", "issue (µs)", "put + completion (µs)", "round trip (µs)"];
        let promised = promises.replace(' ', " · ");
        assert_eq!(cells(&text, PATHS, &line, &times), [&promised, "3.000", "8.000 S", "9.000 S"]);
        assert!(text.contains("gdaki: The Library 1.2.3."), "{text}");

        let page = page(&[&record]);
        assert_harmless(&page);
        assert_complete(&page, &[&record]);
        assert!(page.contains("S: something stands in for hardware"));
        assert!(page.contains("<a href=\"#beside\">Beside the libraries</a>"));
    }
}

#[test]
fn of_several_equal_lines_the_fastest_is_compared_with_by_the_time_that_is_compared() {
    let ring = "order=gpu-release sharing=exclusive cq=ring conn=rc";
    let fence = "order=gpu-fence sharing=exclusive cq=collapsed conn=rc";
    let promises = "exclusive gpu yes one";
    let none = "order=none sharing=exclusive cq=collapsed conn=rc";
    let others = vec![
        put("mini-gda", ring, "issue_us", 0.1, ours(promises)),
        put("mini-gda", ring, "put_completion_us", 5.0, ours(promises)),
        put("mini-gda", fence, "issue_us", 0.4, ours(promises)),
        put("mini-gda", none, "issue_us", 0.05, ours("exclusive none yes one")),
        put("gdaki", "variant=exclusive", "issue_us", 2.0, theirs(promises)),
        put("gdaki", "variant=exclusive", "put_completion_us", 3.0, theirs(promises)),
        put("gdaki", "variant=gpu", "issue_us", 2.0, theirs("gpu none no one")),
    ];
    let text = markdown(&all(&[mini_gda(), others]));
    // The line that every other is compared with is the usual order with a collapsed CQ, though others are faster.
    for (variant, expected) in [
        ("exclusive", ["20.00", "1.50 S", "4.00", "nothing"]),
        // Of two that differ in two promises: without order, and shared.
        (
            "gpu",
            ["unequal: 40.00", "–", "4.00", "sharing gpu, not exclusive; room checked no, not yes"],
        ),
    ] {
        let columns = [RATIOS[0], RATIOS[1], PLAINEST, RATIOS[2]];
        assert_eq!(cells(&text, PATHS, &["gdaki", variant], &columns), expected, "{variant}");
    }
}

/// The section of the libraries.
fn section(text: &str) -> &str {
    text.split("**Beside the libraries.**").nth(1).expect("the section")
}

/// A record with many lines of every kind, some of the same time, some without a median.
fn many() -> Vec<Value> {
    let promises = "gpu gpu yes one";
    let mut rows = mini_gda();
    let variants = ["variant=gpu", "variant=exclusive", "variant=cta", "variant=gin"];
    let steps = ["variant=no-lock", "variant=no-fence", "variant=no-publish", "variant=no-chunks"];
    for (transport, slower) in
        [("gdaki", 0.0), ("deepep", 0.5), ("nvshmem", 0.0), ("new", 0.25), ("other", 1.0)]
    {
        let at = variants.iter().zip([3.0, 1.0, 2.0, 2.0]);
        let ways = at.map(|(at, p50)| (*at, p50, theirs(promises)));
        let at = steps.iter().zip([2.5, 0.5, 2.5, 3.5]);
        let lacking = at.map(|(at, p50)| (*at, p50, step(promises, "it", "gpu")));
        for (number, (at, p50, details)) in ways.chain(lacking).enumerate() {
            let found = with(details, json!({"nic_findings": number % 3, "nic_first_finding": at}));
            rows.push(put(transport, at, "issue_us", p50 + slower, found.clone()));
            rows.push(put(transport, at, "put_completion_us", p50 + 2.0, found));
        }
    }
    for like in ["like=gdaki", "like=gdaki without=lock", "like=deepep", "like=nvshmem"] {
        rows.push(put("mini-gda", like, "issue_us", 2.0, ours(promises)));
    }
    rows.push(put("bare", "order=gpu-release", "issue_us", 0.5, ours("exclusive gpu no one")));
    let proxied = "gpu system yes one";
    rows.push(put(
        "mini-proxy",
        "handoff=lap-parity reserve=owned",
        "enqueue_us",
        0.5,
        ours("exclusive system yes one"),
    ));
    rows.push(put(
        "mini-proxy",
        "handoff=lap-parity reserve=atomic",
        "enqueue_us",
        0.75,
        ours(proxied),
    ));
    rows.push(put("mscclpp", "variant=put", "enqueue_us", 1.5, theirs(proxied)));
    let last = rows.len() - 1;
    let mut elsewhere = rows[last].clone();
    elsewhere["nic"] = json!("mlx5");
    rows.push(elsewhere);
    for row in rows.iter_mut().step_by(7) {
        row["p50"] = json!(null);
    }
    rows
}

/// The rows in another order, the same for the same seed.
fn shuffled(mut rows: Vec<Value>, seed: u64) -> Vec<Value> {
    let mut state = seed;
    for end in (1..rows.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        rows.swap(end, (state >> 33) as usize % (end + 1));
    }
    rows
}

#[test]
fn the_order_of_the_tables_is_not_the_records() {
    let rows = many();
    let text = markdown(&with_rows(rows.clone()));
    let expected = section(&text);
    let reversed: Vec<Value> = rows.iter().rev().cloned().collect();
    let orders = (0..24).map(|seed| shuffled(rows.clone(), seed)).chain([reversed]);
    for (number, rows) in orders.enumerate() {
        assert_eq!(section(&markdown(&with_rows(rows))), expected, "order {number}");
    }
    let steps: Vec<String> = table(&text, STEPS).expect("steps")[1..]
        .iter()
        .filter(|row| row[0] == "gdaki")
        .map(|row| row[1].clone())
        .collect();
    assert_eq!(steps.len(), 4, "{text}");

    // Whole blocks again: each line twice, at the same place.
    let (own, lacking): (Vec<Value>, Vec<Value>) =
        rows.into_iter().partition(|row| row["details"]["leaves_out"].is_null());
    let blocks = [own.clone(), lacking.clone(), own.clone(), lacking.clone()].concat();
    let twice = markdown(&with_rows(blocks.clone()));
    let twice = section(&twice);
    let lines = |text: &str| table(text, PATHS).expect("the paths").len() - 1;
    assert_eq!(lines(&format!("**{twice}")), 2 * lines(&format!("**{expected}")), "{twice}");
    for seed in 0..8 {
        assert_eq!(section(&markdown(&with_rows(shuffled(blocks.clone(), seed)))), twice);
    }
}

#[test]
fn a_librarys_default_stands_first_and_then_the_faster_ones() {
    let promises = "gpu gpu yes one";
    let library = ["gin", "cta", "gpu", "exclusive"].into_iter().zip([1.0, 3.0, 4.0, 2.0]);
    let at = |name: &str| match name {
        "gin" => "variant=gin",
        "cta" => "variant=cta",
        "gpu" => "variant=gpu",
        _ => "variant=exclusive",
    };
    let rows = library.map(|(name, p50)| put("gdaki", at(name), "issue_us", p50, theirs(promises)));
    let text = markdown(&all(&[rows.collect(), mini_gda()]));
    let table = table(&text, PATHS).expect("a table");
    let order: Vec<&str> = table[1..].iter().map(|row| row[1].as_str()).collect();
    assert_eq!(order, ["exclusive", "thread", "gpu", "gin", "exclusive", "cta"]);

    // This project's lines likewise: first that which every other is compared with.
    let none = "order=none sharing=exclusive cq=collapsed conn=rc";
    let faster = put("mini-gda", none, "issue_us", 0.1, ours("exclusive none yes one"));
    let library = put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises));
    let text = markdown(&all(&[vec![faster, library], mini_gda()]));
    let table = self::table(&text, PATHS).expect("a table");
    let order: Vec<&str> = table[1..4].iter().map(|row| row[1].as_str()).collect();
    assert_eq!(order, ["gpu-release, exclusive", "order none, exclusive", "gpu-release, thread"]);
}

#[test]
fn a_stand_ins_time_is_never_compared_with_hardwares_nor_with_another_nics() {
    let promises = "gpu gpu yes one";
    let library = || {
        vec![
            put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises)),
            put("gdaki", "variant=gpu", "put_completion_us", 8.0, theirs(promises)),
        ]
    };
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut rows = library();
        rows.iter_mut().for_each(change);
        markdown(&all(&[mini_gda(), rows]))
    };
    let line = ["gdaki", "gpu"];
    let hardware = changed(&|row| row["stand_in"] = json!(false));
    assert_eq!(cells(&hardware, PATHS, &line, &RATIOS[..2]), ["3.00", "–"]);
    for (name, value) in [
        ("nic", json!("soft")),
        ("submitter", json!("host")),
        (
            "placement",
            json!({"queue": "gpu", "record": "gpu", "cq": "gpu", "doorbell": "host", "payload": "gpu"}),
        ),
    ] {
        let text = changed(&|row| row[name] = value.clone());
        assert_eq!(
            cells(&text, PATHS, &line, RATIOS),
            ["–", "–", "no mini-gda beside it"],
            "{name}"
        );
        assert_eq!(
            table(&text, PATHS).expect("a table").len(),
            2,
            "{name}: the head and the library"
        );
    }
}

#[test]
fn a_row_that_says_nothing_of_itself_is_shown_and_not_compared() {
    let silent = || vec![put("gdaki", "variant=gpu", "issue_us", 3.0, json!({}))];
    let text = markdown(&all(&[mini_gda(), silent()]));
    let columns = ["safe for", "issue (µs)", "over mini-gda's issue", "what differs"];
    assert_eq!(
        cells(&text, PATHS, &["gdaki", "gpu"], &columns),
        ["not said", "3.000", "–", "not said what it is safe for"]
    );
    assert!(text.contains("gdaki: its library is not said, version not said."), "{text}");

    let mut ours = mini_gda();
    ours.iter_mut().for_each(|row| row["details"] = json!({}));
    let library = vec![put("gdaki", "variant=gpu", "issue_us", 3.0, theirs("gpu gpu yes one"))];
    let text = markdown(&all(&[ours, library]));
    let expected = ["–", "–", "mini-gda doesn't say what it is safe for"];
    assert_eq!(cells(&text, PATHS, &["gdaki", "gpu"], RATIOS), expected);

    let mut unknown = silent();
    unknown[0]["details"] =
        with(theirs("gpu gpu yes one"), json!({"library_version_known": false}));
    let text = markdown(&all(&[mini_gda(), unknown]));
    assert!(text.contains("The Library 1.2.3, which its adapter doesn't know."), "{text}");
}

#[test]
fn a_record_without_libraries_has_no_such_section() {
    for record in [all(&[mini_gda()]), shown()] {
        assert!(!page(&[&record]).contains("Beside the libraries"));
        assert!(!markdown(&record).contains("Beside the libraries"));
    }
}

#[test]
fn proxied_paths_have_their_own_table_with_the_cpus_side() {
    let said = |promises| with(theirs(promises), json!({"cpu_side": "a consumer"}));
    let text = markdown(&with_rows(vec![
        put(
            "mini-proxy",
            "handoff=lap-parity reserve=owned",
            "enqueue_us",
            0.5,
            ours("exclusive system yes one"),
        ),
        put(
            "mini-proxy",
            "handoff=lap-parity reserve=owned",
            "put_completion_us",
            3.0,
            ours("exclusive system yes one"),
        ),
        put(
            "mini-proxy",
            "handoff=lap-parity reserve=atomic",
            "enqueue_us",
            0.8,
            ours("gpu system yes one"),
        ),
        put("mscclpp", "variant=put", "enqueue_us", 1.0, said("gpu system yes one")),
        put("mscclpp", "variant=put", "put_completion_us", 6.0, said("gpu system yes one")),
        put("mscclpp", "variant=push", "enqueue_us", 0.75, said("exclusive system yes taken")),
        put("mscclpp", "variant=push", "consumed_us", 2.5, said("exclusive system yes taken")),
    ]));
    let columns = [
        "enqueue (µs)",
        "over mini-proxy's enqueue",
        "over exclusive mini-proxy's, release",
        "consumed and seen (µs)",
        "put + completion (µs)",
        "what differs",
    ];
    // One that isn't timed to its completion promises none, and only the one with an owner is.
    let differs = "put + completion alone: sharing gpu, not exclusive";
    for (variant, expected) in [
        ("put", ["1.000", "1.25", "2.00", "–", "6.000 S", differs]),
        ("push", ["0.750", "1.50", "1.50", "2.500 S", "–", "nothing"]),
    ] {
        assert_eq!(cells(&text, PROXIED, &["mscclpp", variant], &columns), expected, "{variant}");
    }
    for (reserve, expected) in
        [("reserve owned", ["0.500", "–", "1.00"]), ("reserve atomic", ["0.800", "–", "1.60"])]
    {
        assert_eq!(cells(&text, PROXIED, &["mini-proxy", reserve], &columns[..3]), expected);
    }
    assert!(text.contains("mscclpp: The Library 1.2.3; CPU side: a consumer."), "{text}");
    assert!(table(&text, PATHS).is_none(), "{text}");
}

#[test]
fn a_step_is_told_by_the_variant_that_it_is_made_from_and_is_no_figure_of_the_library() {
    let promises = "gpu gpu yes one";
    let rows = vec![
        put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises)),
        put("gdaki", "variant=gpu", "put_completion_us", 8.0, theirs(promises)),
        put("gdaki", "variant=no-lock", "issue_us", 2.25, step(promises, "the lock", "gpu")),
        put(
            "gdaki",
            "variant=no-lock",
            "put_completion_us",
            8.5,
            step(promises, "the lock", "gpu"),
        ),
        put("gdaki", "variant=no-fence", "issue_us", 1.0, step(promises, "the fence", "cta")),
        put("gdaki", "variant=no-chunks", "issue_us", 2.9, step(promises, "chunks", "")),
        put("gdaki", "variant=no-more", "issue_us", 2.0, step(promises, "more", "no-lock")),
    ];
    let record = all(&[mini_gda(), rows]);
    let text = markdown(&record);
    let columns = ["leaves out", "against", "issue (µs)", "difference", "of put + completion"];
    for (variant, expected) in [
        ("no-lock", ["the lock", "gpu", "2.250", "−0.750", "+0.500 S"]),
        ("no-fence", ["the fence", "cta, not measured here", "1.000", "–", "–"]),
        ("no-more", ["more", "no-lock", "2.000", "−0.250", "–"]),
    ] {
        assert_eq!(cells(&text, STEPS, &["gdaki", variant], &columns), expected, "{variant}");
    }
    // What is made from no way of the path is no step of one.
    let steps = table(&text, STEPS).expect("a table");
    assert!(steps.iter().all(|row| row[1] != "no-chunks"), "{steps:?}");
    assert!(text.contains("made from no other way of its path: gdaki no-chunks."), "{text}");
    let alone = put("gdaki", "variant=ring", "issue_us", 2.9, step(promises, "more", ""));
    assert!(table(&markdown(&all(&[mini_gda(), vec![alone]])), STEPS).is_none());
    let paths = table(&text, PATHS).expect("a table");
    assert!(paths.iter().all(|row| !row[1].starts_with("no-")), "{paths:?}");
    // The slowest way of the library isn't one that lacks a step, nor is a bar.
    assert!(text.contains("gdaki gpu, adds 2.500 µs"), "{text}");
    let page = page(&[&record]);
    let section = page.split("<section id=\"beside\">").nth(1).expect("a section");
    let picture = pictures(section)[0];
    assert!(picture.contains(">gpu</text>") && !picture.contains("no-lock"), "{picture}");
}

#[test]
fn a_variant_that_was_measured_twice_tells_no_step() {
    let promises = "gpu gpu yes one";
    let rows = vec![
        put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises)),
        put("gdaki", "variant=gpu", "issue_us", 2.0, theirs(promises)),
        put("gdaki", "variant=no-lock", "issue_us", 1.0, step(promises, "the lock", "gpu")),
    ];
    let text = markdown(&all(&[rows]));
    assert_eq!(cells(&text, STEPS, &["gdaki", "no-lock"], &["difference"]), ["–"]);
}

/// The text below the tables of the libraries is the same with and without these rows.
fn before(text: &str) -> String {
    text.split("**Beside").next().unwrap_or_default().trim().to_owned()
}

#[test]
fn what_is_like_a_library_is_compared_with_it_and_is_not_mini_gdas_own() {
    let promises = "gpu gpu yes one";
    let own = mini_gda();
    let bare = put("bare", "order=gpu-release", "issue_us", 0.5, ours("exclusive gpu no one"));
    let library = vec![
        put("gdaki", "variant=gpu", "issue_us", 2.0, theirs(promises)),
        put("gdaki", "variant=exclusive", "issue_us", 1.0, theirs("exclusive gpu yes one")),
    ];
    let like = vec![
        put(
            "mini-gda",
            "like=gdaki without=none order=gpu-release",
            "issue_us",
            2.2,
            ours(promises),
        ),
        put(
            "mini-gda",
            "like=gdaki-exclusive order=gpu-release",
            "issue_us",
            0.8,
            ours("exclusive gpu yes one"),
        ),
        put("mini-gda", "like=nvshmem order=gpu-release", "issue_us", 5.0, ours("gpu gpu yes all")),
        put(
            "mini-gda",
            "like=somebody order=gpu-release",
            "issue_us",
            5.0,
            ours("gpu gpu yes all"),
        ),
        put(
            "mini-gda",
            "like=gdaki without=lock order=gpu-release",
            "issue_us",
            1.7,
            ours(promises),
        ),
    ];
    let mut own_too = own.clone();
    own_too.iter_mut().for_each(|row| row["parameters"]["like"] = json!("none"));
    let without = markdown(&all(&[own, vec![bare.clone()], library.clone()]));
    let text = markdown(&all(&[own_too, vec![bare], library, like]));
    // Neither a figure, nor a derived quantity, nor the ratio of a library changes.
    assert_eq!(before(&text), before(&without));
    assert!(before(&text).contains("over the bare sequence's"), "{text}");
    assert_eq!(cells(&text, PATHS, &["gdaki", "gpu"], RATIOS), ["2.00", "–", "nothing"]);
    assert_eq!(table(&text, PATHS), table(&without, PATHS));

    let columns = ["issue (µs)", "library's", "its issue (µs)", "ratio", "within 15 %"];
    for (name, expected) in [
        ("gdaki", ["2.200", "gdaki gpu", "2.000", "1.10", "yes"]),
        ("gdaki-exclusive", ["0.800", "gdaki exclusive", "1.000", "0.80", "no"]),
        ("nvshmem", ["5.000", "nvshmem public", "–", "–", "–"]),
        ("somebody", ["5.000", "–", "–", "–", "–"]),
    ] {
        assert_eq!(cells(&text, LIKE, &[name], &columns), expected, "{name}");
    }
    let columns = ["leaves out", "against", "difference"];
    let line = ["mini-gda", "like gdaki"];
    assert_eq!(cells(&text, STEPS, &line, &columns), ["lock", "like gdaki", "−0.500"]);
    assert!(table(&without, LIKE).is_none());
}

#[test]
fn queues_that_threads_share_are_not_compared_with_the_bare_sequence() {
    let mut rows = mini_gda();
    rows.push(put("bare", "order=gpu-release", "issue_us", 0.5, ours("exclusive gpu no one")));
    for row in &mut rows {
        let sharing = row["parameters"]["sharing"].as_str().unwrap_or("exclusive").to_owned();
        row["details"]["sharing"] = json!(sharing);
    }
    let text = markdown(&with_rows(rows));
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("issue over the bare sequence's")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].contains("| 1.000 |"), "{text}");
}

#[test]
fn what_the_nic_found_stands_with_its_first_finding_and_only_where_there_is_some() {
    let promises = "gpu gpu yes one";
    let found = |details: Value, count: u64| {
        with(details, json!({"nic_findings": count, "nic_first_finding": "the record came late"}))
    };
    let nic = "What the NIC saw";
    let rows = vec![
        put("gdaki", "variant=gpu", "issue_us", 3.0, found(theirs(promises), 2)),
        put("gdaki", "variant=gpu", "put_completion_us", 3.0, found(theirs(promises), 7)),
        put("gdaki", "variant=cta", "issue_us", 3.0, theirs(promises)),
        put("gdaki", "variant=no-fence", "issue_us", 3.0, found(step(promises, "it", "gpu"), 1)),
        // Not a library's.
        put("mini-gda", "order=none", "issue_us", 3.0, found(ours(promises), 9)),
    ];
    let text = markdown(&with_rows(rows));
    let table = table(&text, nic).expect("a table");
    assert_eq!(table.len(), 3, "{table:?}");
    let columns = ["findings", "the first"];
    assert_eq!(cells(&text, nic, &["gdaki", "gpu"], &columns), ["7", "the record came late"]);
    let line = ["gdaki", "no-fence, which lacks a step"];
    assert_eq!(cells(&text, nic, &line, &columns[..1]), ["1"]);

    let none = vec![put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises))];
    assert!(self::table(&markdown(&with_rows(none)), nic).is_none());
}

#[test]
fn each_record_is_compared_with_itself_alone() {
    let promises = "gpu gpu yes one";
    let library = || vec![put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises))];
    let whole = all(&[mini_gda(), library()]);
    let alone = all(&[library()]);
    let page = page(&[&whole, &alone]);
    assert_harmless(&page);
    assert_complete(&page, &[&whole, &alone]);
    let section = page.split("<section id=\"beside\">").nth(1).expect("a section");
    let section = section.split("</section>").next().expect("its end");
    let of = |label: &str| {
        let title = format!("<h3>The paths, GPU-submitted: {label}</h3>");
        let rest = section.split(&title).nth(1).unwrap_or_else(|| panic!("no {title}"));
        rest.split("</table>").next().expect("a table").to_owned()
    };
    assert!(of("machine-0").contains("3.00<span") && !of("machine-0").contains("no mini-gda"));
    assert!(
        of("machine-1").contains("no mini-gda beside it") && !of("machine-1").contains("3.00<span")
    );
    assert_eq!(pictures(section).len(), 2, "one each");
}

#[test]
fn the_picture_has_the_defaults_and_what_they_are_compared_with_a_colour_a_class() {
    let promises = "gpu gpu yes one";
    let proxied = "exclusive system yes one";
    let record = all(&[
        mini_gda(),
        vec![
            put("gdaki", "variant=gpu", "issue_us", 3.0, theirs(promises)),
            put("gdaki", "variant=cta", "issue_us", 3.0, theirs(promises)),
            put("mini-proxy", "handoff=lap-parity", "enqueue_us", 0.5, ours(proxied)),
            put("mscclpp", "variant=put", "enqueue_us", 1.0, theirs(proxied)),
            put("mscclpp", "variant=push", "enqueue_us", 1.0, theirs(proxied)),
        ],
    ]);
    let page = page(&[&record]);
    assert_complete(&page, &[&record]);
    let section = page.split("<section id=\"beside\">").nth(1).expect("a section");
    let section = section.split("</section>").next().expect("its end");
    let pictures = pictures(section);
    let [submitted, proxied] = pictures.as_slice() else { panic!("{}", pictures.len()) };
    for (picture, colour, bars) in [(submitted, "mark c0", 3), (proxied, "mark c1", 2)] {
        assert_eq!(picture.matches(colour).count(), bars, "{picture}");
        assert_eq!(
            values(picture, "data-again").len(),
            bars,
            "shown by the experiment's own picture"
        );
        assert!(!picture.contains(">above</text>") && !picture.contains(">push</text>"));
    }
}

#[test]
fn hostile_texts_of_libraries_are_only_text() {
    let mut details = theirs("gpu gpu yes one");
    for name in ["library", "library_version", "sharing", "order_scope", "space_check", "cpu_side"]
    {
        details[name] = json!(HOSTILE);
    }
    let found = json!({"nic_findings": 1e300, "nic_first_finding": HOSTILE});
    let details = with(details, found);
    let step = with(details.clone(), json!({"leaves_out": HOSTILE, "step_of": HOSTILE}));
    let mut rows = mini_gda();
    for (transport, details) in [("gdaki", details.clone()), ("deepep", step), (HOSTILE, details)] {
        let mut row = put("gdaki", "variant=gpu", "issue_us", 3.0, details);
        row["transport"] = json!(transport);
        row["parameters"]["variant"] = json!(HOSTILE);
        row["unsafe_mode"] = json!(HOSTILE);
        rows.push(row);
    }
    let mut like = put("mini-gda", "order=none", "issue_us", 1.0, ours("gpu gpu yes one"));
    like["parameters"]["like"] = json!(HOSTILE);
    rows.push(like);
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_harmless(&page);
    assert_complete(&page, &[&record]);
    let text = markdown(&record);
    assert!(!text.contains('<') && text.contains("&lt;script&gt;"), "{text}");
}
