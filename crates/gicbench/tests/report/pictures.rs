//! What a picture shows, and how.

use super::*;

#[test]
fn every_picture_has_titles_with_units_on_its_axes() {
    let page = page(&[&shown()]);
    let pictures = pictures(&page);
    assert!(pictures.len() >= 12, "{}", pictures.len());
    for picture in pictures {
        let is_bars = picture.contains("class=\"head\"");
        let titles: Vec<&str> = picture
            .split("class=\"title ")
            .skip(1)
            .filter_map(|rest| rest.split('>').nth(1)?.split('<').next())
            .filter(|title| !title.is_empty())
            .collect();
        assert_eq!(titles.len(), if is_bars { 1 } else { 2 }, "{titles:?}");
        for title in titles {
            let unit = title.rsplit('(').next().expect("brackets");
            let known = ["µs", "M msg/s", "GB/s", "B)", "count)", "MHz"];
            assert!(known.iter().any(|known| unit.starts_with(known)), "{title}");
        }
        assert!(picture.contains(" aria-label="));
    }
}

#[test]
fn the_picture_follows_from_the_axes_that_vary() {
    let record = shown();
    let point = |load: u64, mode: &str| json!({"load": load, "mode": mode, "ops": 9, "warmup": 0, "duration_s": null});
    let page_of = |loads: &[u64], modes: &[&str]| {
        let mut rows = Vec::new();
        for load in loads {
            for mode in modes {
                rows.push(made_up(&record, point(*load, mode), 1.0 + *load as f64));
            }
        }
        let record = with_rows(rows);
        let page = page(&[&record]);
        assert_harmless(&page);
        assert_complete(&page, &[&record]);
        page
    };
    let lines = page_of(&[0, 1, 8, 64], &["plain", "fancy"]);
    assert_eq!(pictures(&lines).len(), 1);
    assert!(
        lines.contains(">load (count)</text>") && lines.contains(">mode fancy</text>"),
        "{lines}"
    );

    let bars = page_of(&[1, 2], &["plain", "fancy"]);
    assert_eq!(pictures(&bars).len(), 1);
    assert_eq!(bars.matches("class=\"bar\"").count() - 2, 4, "a bar each, beside the legend's two");

    // More lines than colours are split into panels, and what a panel shares stands in its title.
    let many: Vec<String> = (0..6).map(|mode| format!("mode-{mode}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut rows = Vec::new();
    for load in [1, 2, 4] {
        for mode in &many {
            for queues in [1, 2] {
                let mut parameters = point(load, mode);
                parameters["qps"] = json!(queues);
                rows.push(made_up(&record, parameters, load as f64));
            }
        }
    }
    let panels = page(&[&with_rows(rows)]);
    assert_eq!(pictures(&panels).len(), 2);
    assert!(panels.contains(">issue: qps 1</text>") && panels.contains(">issue: qps 2</text>"));
}

/// The texts of a class in a picture, in their order.
fn texts<'a>(picture: &'a str, class: &str) -> Vec<&'a str> {
    let start = format!("class=\"{class}\"");
    let rest = picture.split(&start).skip(1);
    rest.filter_map(|rest| rest.split_once('>')?.1.split('<').next()).collect()
}

#[test]
fn long_titles_and_names_are_wrapped_and_none_is_cut() {
    let record = shown();
    let long = |word: &str| format!("{word}-which-is-a-rather-long-word");
    let mut rows = Vec::new();
    for load in [1, 2, 4] {
        for line in 0..6 {
            for panel in ["left", "right"] {
                let parameters = json!({"load": load, "mode": long("mode"), "kind": long(panel),
                    "other": long(panel), "third": long(panel), "line": long(&format!("line-{line}")),
                    "again": long(&format!("again-{line}"))});
                rows.push(made_up(&record, parameters, f64::from(load + line)));
            }
        }
    }
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_complete(&page, &[&record]);
    let pictures = pictures(&page);
    assert_eq!(pictures.len(), 2);
    for (picture, panel) in pictures.into_iter().zip(["left", "right"]) {
        assert!(!picture.contains('…'));
        let title = texts(picture, "panel");
        assert!(title.len() > 1 && title.iter().all(|line| line.len() <= 70), "{title:?}");
        let title = title.join(" ");
        for name in ["kind", "other", "third"] {
            assert!(title.contains(&format!("{name} {}", long(panel))), "{title}");
        }
        // What all lines of the page or of the panel share isn't repeated in each.
        let names = texts(picture, "name").join(" ");
        assert!(!names.contains("mode") && !names.contains("kind"), "{names}");
        for line in 0..6 {
            let name = names.replace(' ', "");
            assert!(name.contains(&format!("line{}", long(&format!("line-{line}")))), "{name}");
        }
    }
    assert_eq!(page.matches("At every point: ").count(), 1);
    assert!(page.contains(&format!("mode {}", long("mode"))));
}

#[test]
fn points_that_stand_alone_on_the_axis_are_bars_beside_their_neighbours() {
    let record = shown();
    let point = |load: u64, queues: u64, mode: &str, kind: &str| {
        let lane = format!("lane-{queues}");
        let parameters = json!({"load": load, "lane": lane, "mode": mode, "kind": kind});
        made_up(&record, parameters, (load * queues) as f64)
    };
    let mut rows = Vec::new();
    for load in [1, 4, 16] {
        rows.extend((1..=8).map(|queues| point(load, queues, "plain", "one")));
    }
    // One line in each of two ways, and single points in two others.
    for mode in ["quick", "slow"] {
        rows.extend([1, 4].map(|load| point(load, 2, mode, "one")));
    }
    rows.extend(["two", "three"].map(|kind| point(16, 2, "plain", kind)));
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_harmless(&page);
    assert_complete(&page, &[&record]);
    let pictures = pictures(&page);
    let [lines, joined, bars] = pictures.as_slice() else { panic!("{}", pictures.len()) };
    assert_eq!(texts(lines, "name").len(), 8);
    // The two lines, and the one that differs from them in nothing but the mode.
    let mut names = texts(joined, "name");
    names.sort_unstable();
    assert_eq!(names, ["mode plain", "mode quick", "mode slow"]);
    assert_eq!(values(joined, "data-again").len(), 3);
    assert_eq!((values(bars, "data-mark").len(), values(bars, "data-again").len()), (2, 1));
    assert!(texts(bars, "cell").contains(&"above"), "{bars}");
}

#[test]
fn a_fact_that_only_its_noise_changes_is_no_axis() {
    let record = shown();
    for (step, is_axis) in [(0.001, false), (400.0, true)] {
        let rows = (0..3).map(|index| {
            let mut row = made_up(&record, json!({"payload": 8}), 1.0);
            row["experiment"] = json!("clock");
            row["parameters"]["order"] = json!(["none", "gpu-release", "system-fence"][index]);
            row["details"] = json!({"clock_mhz": 1980.0 - step * index as f64});
            row
        });
        let record = with_rows(rows.collect());
        let page = page(&[&record]);
        assert_complete(&page, &[&record]);
        assert_eq!(page.contains("clock, as measured (MHz)</text>"), is_axis);
    }
}

#[test]
fn a_line_that_is_unsafe_as_a_whole_says_so_once() {
    let record = shown();
    let page_of = |unsafe_points: &[u64]| {
        let mut rows = Vec::new();
        for mode in ["first", "second"] {
            rows.extend([1, 2, 4].map(|load: u64| {
                let mut row = made_up(&record, json!({"load": load, "mode": mode}), 1.0);
                let is_unsafe = mode == "first" && unsafe_points.contains(&load);
                row["unsafe_mode"] = if is_unsafe { json!("why") } else { json!(null) };
                row
            }));
        }
        page(&[&with_rows(rows)])
    };
    for (unsafe_points, name, letters) in [
        (&[1u64, 2, 4] as &[u64], "mode first (U)", 0),
        (&[2], "mode first", 1),
        (&[], "mode first", 0),
    ] {
        let page = page_of(unsafe_points);
        let picture = pictures(&page)[0];
        assert!(texts(picture, "name").contains(&name), "{name}");
        assert_eq!(texts(picture, "unsafe-letter").len(), letters, "{name}");
    }
}
