//! The dashboards of packaging/grafana: their queries, and a picture of what Prometheus answers to them.

use std::fmt::Write as _;

use serde_json::Value;

/// A dashboard.
#[derive(Debug, Clone)]
pub struct Dashboard {
    /// Its name for Grafana.
    pub uid: String,
    /// Its title.
    pub title: String,
    /// Its panels, in order.
    pub panels: Vec<Panel>,
}

/// A panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// `stat`, `timeseries` or `table`.
    pub kind: String,
    /// How its values are written.
    pub unit: String,
    /// Its queries, of all nodes and jobs and over a minute.
    pub targets: Vec<String>,
    /// What each query's series are called, with `{{label}}` in it.
    pub legends: Vec<String>,
}

/// A series of values that Prometheus answers with.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Seconds since 1970, and values.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// The last value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }
}

/// The series of a `result` of Prometheus' API.
pub fn series(result: &Value) -> Vec<Series> {
    let point = |point: &Value| Some((point[0].as_f64()?, point[1].as_str()?.parse().ok()?));
    let one = |one: &Value| Series {
        labels: one["metric"].as_object().map_or_else(Vec::new, |labels| {
            labels
                .iter()
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect()
        }),
        points: match &one["values"] {
            Value::Array(values) => values.iter().filter_map(point).collect(),
            _ => point(&one["value"]).into_iter().collect(),
        },
    };
    result.as_array().map_or_else(Vec::new, |all| all.iter().map(one).collect())
}

impl Dashboard {
    /// That of a node.
    pub fn node() -> Self {
        Self::parse(include_str!("../../../packaging/grafana/fgpu-node.json"))
    }

    /// That of all nodes.
    pub fn fleet() -> Self {
        Self::parse(include_str!("../../../packaging/grafana/fgpu-fleet.json"))
    }

    fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).expect("a dashboard is JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let plain = |expression: String| {
            let all = [("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")];
            all.iter().fold(expression, |text, (name, value)| text.replace(name, value))
        };
        let panel = |panel: &Value| Panel {
            title: text(&panel["title"]),
            kind: text(&panel["type"]),
            unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
            targets: list(&panel["targets"]).iter().map(|target| plain(text(&target["expr"]))).collect(),
            legends: list(&panel["targets"]).iter().map(|target| text(&target["legendFormat"])).collect(),
        };
        Self {
            uid: text(&value["uid"]),
            title: text(&value["title"]),
            panels: list(&value["panels"]).iter().map(panel).collect(),
        }
    }
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 190.0;
/// The height of a panel that shows a value.
const VALUE: f64 = 90.0;
const GAP: f64 = 12.0;
/// Distinct on white and on dark (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666"];

/// The panels as an SVG picture: the values in a row, then curves over the time, two beside each other. `answers`:
/// of each panel the series of each query.
pub fn picture(dashboard: &Dashboard, answers: &[Vec<Vec<Series>>], caption: &str) -> String {
    let of_kind = |kind: &str| -> Vec<_> {
        dashboard.panels.iter().zip(answers).filter(|(panel, _)| panel.kind == kind).collect()
    };
    let (values, graphs) = (of_kind("stat"), of_kind("timeseries"));
    let width = 2.0 * WIDTH + 3.0 * GAP;
    let below = 40.0 + VALUE + 2.0 * GAP;
    let height = below + graphs.len().div_ceil(2) as f64 * (HEIGHT + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#f4f5f5\"/>\n\
         <text x=\"{GAP}\" y=\"26\" font-size=\"16\" fill=\"#222\">{}</text>\n",
        escape(caption)
    );
    let narrow = (width - GAP) / values.len().max(1) as f64 - GAP;
    for (number, (panel, answers)) in values.into_iter().enumerate() {
        let text = format!(
            "<text x=\"{}\" y=\"66\" font-size=\"26\" text-anchor=\"middle\" fill=\"#0072b2\">{}</text>\n",
            narrow / 2.0,
            escape(&value(panel, answers))
        );
        svg += &framed(panel, GAP + number as f64 * (narrow + GAP), 40.0 + GAP, narrow, VALUE, &text);
    }
    for (number, (panel, answers)) in graphs.into_iter().enumerate() {
        let x = GAP + (number % 2) as f64 * (WIDTH + GAP);
        let y = below + (number / 2) as f64 * (HEIGHT + GAP);
        svg += &framed(panel, x, y, WIDTH, HEIGHT, &curves(panel, answers));
    }
    svg + "</svg>\n"
}

fn framed(panel: &Panel, x: f64, y: f64, width: f64, height: f64, content: &str) -> String {
    format!(
        "<g transform=\"translate({x:.1} {y:.1})\">\n<rect width=\"{width:.1}\" height=\"{height}\" fill=\"#fff\" stroke=\"#ddd\"/>\n\
         <text x=\"10\" y=\"20\" font-weight=\"bold\" fill=\"#333\">{}</text>\n{content}</g>\n",
        escape(&panel.title)
    )
}

/// The last value of a panel that shows one.
fn value(panel: &Panel, answers: &[Vec<Series>]) -> String {
    let last: Vec<(f64, f64)> =
        answers.iter().flatten().filter_map(|series| series.points.last().copied()).collect();
    let sum: f64 = last.iter().map(|point| point.1).sum();
    match (panel.unit.as_str(), last.first()) {
        ("dateTimeFromNow", Some((now, then))) => format!("{:.0} s ago", now - then / 1000.0),
        _ => amount(sum, &panel.unit),
    }
}

fn curves(panel: &Panel, answers: &[Vec<Series>]) -> String {
    let (left, right, top, bottom) = (64.0, WIDTH - 12.0, 32.0, HEIGHT - 44.0);
    let all = || answers.iter().flatten().flat_map(|series| &series.points);
    let first = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let last = all().map(|point| point.0).fold(first + 1.0, f64::max);
    let most = all().map(|point| point.1).fold(0.0, f64::max).max(1e-9) * 1.1;
    let mut svg = String::new();
    for part in 0..3 {
        let value = most * f64::from(part) / 2.0;
        let y = bottom - (bottom - top) * f64::from(part) / 2.0;
        let _ = write!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e5e5\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{}</text>\n",
            left - 6.0,
            y + 4.0,
            escape(&amount(value, &panel.unit))
        );
    }
    let mut x = left;
    let mut names: Vec<String> = Vec::new();
    let named =
        answers.iter().zip(&panel.legends).flat_map(|(all, legend)| all.iter().map(move |one| (one, legend)));
    for (series, legend) in named {
        // Each life of a container is a series; all of one name look alike.
        let name = named_as(legend, series);
        let known = names.iter().position(|known| *known == name);
        let colour = COLOURS[known.unwrap_or(names.len()) % COLOURS.len()];
        let place = |(time, value): &(f64, f64)| {
            let along = (time - first) / (last - first) * (right - left);
            format!("{:.1},{:.1}", left + along, bottom - value / most * (bottom - top))
        };
        let points: Vec<String> = series.points.iter().map(place).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            points.join(" ")
        );
        if known.is_some() {
            continue;
        }
        let end = x + 14.0 + 6.2 * name.chars().count() as f64;
        if end < right {
            let _ = write!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{}\" width=\"10\" height=\"3\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#444\" font-size=\"11\">{}</text>\n",
                HEIGHT - 16.0,
                x + 14.0,
                HEIGHT - 11.0,
                escape(&name)
            );
            x = end + 12.0;
        }
        names.push(name);
    }
    svg
}

/// What a series is called: the legend with its labels' values.
fn named_as(legend: &str, series: &Series) -> String {
    let with = |text: String, (key, value): &(String, String)| text.replace(&format!("{{{{{key}}}}}"), value);
    series.labels.iter().fold(legend.to_owned(), with)
}

fn amount(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => format!("{:.1} GiB", value / f64::from(1 << 30)),
        "percentunit" => format!("{:.0} %", value * 100.0),
        _ if value.fract().abs() < 1e-9 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
