//! Bad usage: named before anything runs, with the nearest that would do.

use std::fs;

use crate::fake::*;
use gicbench::context::Interrupt;
use gicbench::exit::ExitStatus;

fn refused(arguments: &[&str]) -> String {
    let ran = gicbench(arguments, &Interrupt::default());
    assert_eq!(ran.status(), ExitStatus::Usage, "{arguments:?}");
    assert_eq!(ran.table, "", "nothing has run");
    ran.error()
}

#[test]
fn what_is_not_known_or_does_not_fit_is_named_with_the_nearest() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["fak"], &["'fak'", "nearest: fake"]),
        (&["fake", "--transport", "mini-gd"], &["--transport 'mini-gd'", "mini-gda"]),
        (&["fake", "--submitter", "cude"], &["--submitter 'cude'", "cuda"]),
        (&["fake", "--nic", "sotf"], &["--nic 'sotf'", "soft"]),
        (&["fake", "--order", "gpu-relese"], &["--order 'gpu-relese'", "gpu-release"]),
        (&["fake", "--qps", "0"], &["--qps '0'", "the least is 1"]),
        (&["fake", "--qps", "1,x"], &["--qps 'x'", "not a whole number"]),
        (&["fake", "-b", "1T"], &["-b '1T'", "powers of two"]),
        (&["fake", "-b", "64", "-e", "8"], &["-b 64 -e 8", "below"]),
        // The axis knows the word, the experiment doesn't take it.
        (
            &["fake", "--order", "system-fence"],
            &["--order system-fence", "'fake' does not take it", "none, gpu-release"],
        ),
        (
            &["other", "--transport", "mini-proxy"],
            &["--transport mini-proxy", "'other' does not take it", "mini-gda"],
        ),
        // A flag that does nothing.
        (&["other", "--qps", "4"], &["--qps is used by none", "used by fake"]),
        (&["other", "-b", "4"], &["-b/-e is used by none", "fake"]),
        (
            &["fake", "--transport", "mini-gda", "--workers", "2"],
            &["--workers is used by none", "fake (--transport mini-proxy)"],
        ),
        (&["--scope", "all"], &["--scope is used by none"]),
        // Values that exclude each other.
        (
            &["fake", "-b", "8", "-e", "128", "--inline", "off,on"],
            &["-b/-e 128 can't be combined with --inline on", "no more than 64", "nearest: 64"],
        ),
        (&["fake", "-b", "128"], &["-b/-e 128 can't be combined with --inline on", "64"]),
        (&["--suite", "quik"], &["--suite 'quik'", "quick"]),
        (&["--suite", "/no/such.toml"], &["/no/such.toml"]),
        (&["--from", "/no/such.json"], &["/no/such.json"]),
        (&["--from", "x.json", "--qps", "1"], &["--from", "--qps"]),
    ];
    for (arguments, words) in cases {
        let error = refused(arguments);
        for word in *words {
            assert!(error.contains(word), "{arguments:?}: {error}");
        }
    }
}

#[test]
fn a_sweep_of_the_suite_drops_what_cannot_be_combined_with_what_was_asked_for() {
    // Of the full suite's inline off and on, 128 bytes leave off.
    let ran = recorded(&["fake", "--suite", "full", "-b", "128", "--transport", "mini-proxy"]);
    assert_eq!(ran.status(), ExitStatus::Done);
    for row in ran.array("measurements") {
        assert_eq!(row["parameters"]["inline"], "off");
    }
}

#[test]
fn without_names_a_flag_goes_to_the_experiments_that_use_it() {
    let ran = recorded(&["--batch", "2", "-n", "20"]);
    assert_eq!(ran.status(), ExitStatus::Done);
    for row in ran.array("measurements") {
        let batch = &row["parameters"]["batch"];
        assert_eq!(batch == 2, row["experiment"] == "other", "{row}");
    }
}

#[test]
fn a_file_that_exists_is_refused_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    fs::write(&path, "mine").unwrap();
    let text = path_text(&path);
    for flag in ["--json", "--csv"] {
        let error = refused(&["fake", flag, &text]);
        assert!(error.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
    let ran = gicbench(&["fake", "--json", &text, "--force"], &Interrupt::default());
    assert_eq!(ran.status(), ExitStatus::Done);
    assert_valid(&read(&path));
    // Nothing is left beside it.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_suite_file_is_run_and_the_command_line_overrides_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("suite.toml");
    fs::write(
        &path,
        r#"
        [[run]]
        experiments = ["fake"]
        transport = "mini-gda"
        order = ["none", "gpu-release"]
        payload = "8,16"
        inline = "off"
        ops = 100

        [[run]]
        experiments = ["other"]
        batch = [1, 2]
        ops = 30
        "#,
    )
    .unwrap();
    let suite = path_text(&path);
    let ran = recorded(&["--suite", &suite]);
    let issues = |ran: &Ran, experiment: &str| {
        let rows = ran.array("measurements").iter();
        rows.filter(|row| row["experiment"] == experiment && row["metric"] == "issue_us").count()
    };
    assert_eq!((issues(&ran, "fake"), issues(&ran, "other")), (4, 2));
    assert_eq!(ran.record()["parameters"]["suite"], suite);

    let only = recorded(&["other", "--suite", &suite, "--batch", "1", "-n", "40"]);
    assert_eq!((issues(&only, "fake"), issues(&only, "other")), (0, 1));
    assert_eq!(only.array("measurements")[0]["samples"], 40);

    for (text, word) in [
        ("[[run]]\nexperiments = ['fak']", "'fak'"),
        ("[[run]]\nexperiments = []", "no experiment"),
        ("[[run]]\nexperiments = ['fake']\nordr = 'none'", "'ordr'"),
        ("[[run]]\nexperiments = ['fake']\norder = 'nune'", "'nune'"),
        ("[[run]]\nexperiments = ['fake']\nqps = 0", "'0'"),
        ("[[run]]\nexperiments = ['fake']\nduration = 'x'", "duration 'x'"),
        ("[[run]]\nexperiments = ['fake']\nops = 0", "ops 0"),
        ("[[run]]\nexperiments = ['fake']\nqps = []", "qps: an empty list"),
        ("[[run]]\nexperiments = ['fake']\ntransport = 'x'", "suite.toml: --transport 'x'"),
        ("run = []", "no [[run]]"),
        ("[[ran]]", "ran"),
        ("=", "TOML"),
    ] {
        fs::write(&path, text).unwrap();
        let error = refused(&["--suite", &suite]);
        assert!(error.contains(word), "{text}: {error}");
    }
}
