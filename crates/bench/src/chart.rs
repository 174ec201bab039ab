//! Curves over the size of a cluster as one SVG: four panels, logarithmic axes, readable on light and on dark.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    report::{Point, number},
    scaling::{DRAIN, MEMORY, PLACING, TICK},
};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 736.0;
/// Of the part of a panel that is drawn on.
const PLOT: (f64, f64) = (372.0, 220.0);
/// Where the plots begin, by column and by row.
const LEFT: [f64; 2] = [84.0, 556.0];
const TOP: [f64; 2] = [122.0, 446.0];
const UNITS: (f64, f64) = (1e3, 1e6);

struct Panel {
    chart: &'static str,
    title: &'static str,
    says: &'static str,
    bar: f64,
    bar_says: &'static str,
    label: fn(f64) -> String,
}

const PANELS: [Panel; 4] = [
    Panel {
        chart: PLACING,
        title: "Placing",
        says: "units placed a second; more is better",
        bar: 200_000.0,
        bar_says: "bar at 1M units on 10k nodes: at least 200k",
        label: short,
    },
    Panel {
        chart: DRAIN,
        title: "Deciding a drain",
        says: "of the fullest node, until orders are ready; less is better",
        bar: 20.0,
        bar_says: "bar at 1M units on 1k nodes: at most 20 ms",
        label: time,
    },
    Panel {
        chart: TICK,
        title: "Idle tick",
        says: "of the coordinator while all nodes send heartbeats; less is better",
        bar: 1.0,
        bar_says: "bar at 1M units: at most 1 ms",
        label: time,
    },
    Panel {
        chart: MEMORY,
        title: "Memory",
        says: "bytes of the process per unit; less is better",
        bar: 600.0,
        bar_says: "bar at 1M units: at most 600",
        label: short,
    },
];

/// Colours that can be told apart without red and green, and on both backgrounds.
const STYLE: &str = "\
svg { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #e4e8ec; --c0: #8a6d00; --c1: #c2410c; --c2: #7c3aed; --c3: #0969da; }
@media (prefers-color-scheme: dark) { svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #262c34; \
--c0: #e3b341; --c1: #fb8f44; --c2: #bc8cff; --c3: #58a6ff; } }
text { font: 12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: var(--soft); }
.head { font-size: 18px; font-weight: 600; fill: var(--ink); }
.title { font-size: 14px; font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--grid); stroke-width: 1; }
.bar { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 5 4; }
.bar-says { font-size: 11px; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
.curve { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.d0 { fill: var(--c0); } .d1 { fill: var(--c1); } .d2 { fill: var(--c2); } .d3 { fill: var(--c3); }
";

pub fn curves(points: &[Point]) -> String {
    let mut nodes: Vec<usize> = points.iter().map(|point| point.nodes).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\" aria-label=\"How placing, draining, ticks and memory grow with units and \
         nodes\">\n<style>\n{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"10\" style=\"fill: var(--paper)\"/>\n\
         <text class=\"head\" x=\"24\" y=\"38\">From a thousand units to a million</text>\n"
    );
    legend(&mut svg, &nodes);
    for (at, panel) in PANELS.iter().enumerate() {
        let mine: Vec<&Point> = points.iter().filter(|point| point.chart == panel.chart).collect();
        draw(&mut svg, panel, (LEFT[at % 2], TOP[at / 2]), &mine, &nodes);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Writing to a string does not fail.
macro_rules! put {
    ($svg:expr, $($arguments:tt)*) => { let _ = writeln!($svg, $($arguments)*); };
}

fn legend(svg: &mut String, nodes: &[usize]) {
    let width = 106.0;
    let from = WIDTH - 24.0 - width * nodes.len() as f64;
    for (at, count) in nodes.iter().enumerate() {
        let x = from + width * at as f64;
        put!(svg, "<line class=\"curve s{at}\" x1=\"{x}\" y1=\"33\" x2=\"{}\" y2=\"33\"/>", x + 22.0);
        put!(svg, "<circle class=\"d{at}\" cx=\"{}\" cy=\"33\" r=\"3.5\"/>", x + 11.0);
        put!(svg, "<text x=\"{}\" y=\"37\">{} nodes</text>", x + 28.0, short(*count as f64));
    }
}

fn draw(svg: &mut String, panel: &Panel, (left, top): (f64, f64), points: &[&Point], nodes: &[usize]) {
    let (width, height) = PLOT;
    let values = points.iter().map(|point| point.value).chain([panel.bar]);
    let (low, high) = decades(values);
    let x = |units: f64| left + width * (units / UNITS.0).log10() / (UNITS.1 / UNITS.0).log10();
    let y = |value: f64| top + height * (1.0 - (value / low).log10() / (high / low).log10());
    put!(svg, "<text class=\"title\" x=\"{left}\" y=\"{}\">{}</text>", top - 34.0, panel.title);
    put!(svg, "<text x=\"{left}\" y=\"{}\">{}</text>", top - 16.0, panel.says);
    for tick in ticks(low, high) {
        let at = y(tick);
        put!(
            svg,
            "<line class=\"grid\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\"/>",
            left + width
        );
        let (x, at) = (left - 8.0, at + 4.0);
        put!(svg, "<text x=\"{x}\" y=\"{at:.1}\" text-anchor=\"end\">{}</text>", (panel.label)(tick));
    }
    for units in [1e3, 1e4, 1e5, 1e6] {
        let (at, bottom) = (x(units), top + height);
        put!(svg, "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>");
        let text = short(units);
        put!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", bottom + 18.0);
    }
    let middle = left + width / 2.0;
    put!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">units</text>", top + height + 36.0);
    let bar = y(panel.bar);
    put!(svg, "<line class=\"bar\" x1=\"{left}\" y1=\"{bar:.1}\" x2=\"{}\" y2=\"{bar:.1}\"/>", left + width);
    for (at, count) in nodes.iter().enumerate() {
        let curve: BTreeMap<usize, f64> = points
            .iter()
            .filter(|point| point.nodes == *count && point.value > 0.0)
            .map(|point| (point.units, point.value))
            .collect();
        let places = curve.iter().map(|(units, value)| (x(*units as f64), y(*value), *units, *value));
        let places: Vec<_> = places.collect();
        let line: Vec<String> = places.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
        put!(svg, "<polyline class=\"curve s{at}\" points=\"{}\"/>", line.join(" "));
        for (x, y, units, value) in places {
            let says = format!("{} units, {} nodes: {}", number(units as f64), count, (panel.label)(value));
            put!(
                svg,
                "<circle class=\"d{at}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{says}</title></circle>"
            );
        }
    }
    // Last, so that no curve runs through it.
    let (right, above) = (left + width - 6.0, bar - 6.0);
    put!(
        svg,
        "<text class=\"bar-says\" x=\"{right}\" y=\"{above:.1}\" text-anchor=\"end\">{}</text>",
        panel.bar_says
    );
}

/// Powers of ten around all of them, with room above.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, 0.0f64);
    for value in values.filter(|value| *value > 0.0) {
        (low, high) = (low.min(value), high.max(value));
    }
    (10f64.powf(low.log10().floor()), 10f64.powf((high * 1.3).log10().ceil()))
}

/// Powers of ten; where there are few, what lies between them too.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10().round() as i32;
    let between: &[f64] = if decades <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all =
        (0..=decades).flat_map(|decade| between.iter().map(move |step| low * 10f64.powi(decade) * step));
    all.filter(|tick| *tick <= high * 1.000_001).collect()
}

fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        _ if value >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

/// Of milliseconds.
fn time(value: f64) -> String {
    match value {
        _ if value >= 999.5 => format!("{} s", trimmed(value / 1e3)),
        _ if value >= 0.9995 => format!("{} ms", trimmed(value)),
        _ if value >= 0.000_999_5 => format!("{} µs", trimmed(value * 1e3)),
        _ => format!("{} ns", trimmed(value * 1e6)),
    }
}

/// Three digits at most, and no zeros at the end.
fn trimmed(value: f64) -> String {
    let text = if value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") };
    text.strip_suffix(".0").map_or(text.clone(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_within_its_panel_and_says_what_it_is() {
        let point = |chart: &str, units, value| Point { chart: chart.to_owned(), nodes: 100, units, value };
        let svg = curves(&[point(PLACING, 1_000, 812_345.0), point(TICK, 100_000, 0.00012)]);
        assert!(svg.contains("<title>1,000 units, 100 nodes: 812k</title>"), "{svg}");
        assert!(svg.contains("<title>100,000 units, 100 nodes: 120 ns</title>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn few_decades_get_ticks_between_them() {
        assert_eq!(ticks(100.0, 1000.0), [100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(ticks(0.001, 10.0).len(), 5);
    }
}
