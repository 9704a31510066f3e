//! Text format of metrics: families of samples, each with one HELP and one TYPE line.
//!
//! The output is the Prometheus text format 0.0.4, or OpenMetrics 1.0 if the client accepts it. They differ
//! in the position of a counter's `_total` and in the last line. A family without samples is omitted.
//!
//! No crate fits: prometheus-client writes OpenMetrics only, appends `_total` to every counter (Felix's names
//! are fixed, and most have none), and has no summaries, which Felix's page needs; prometheus writes the text
//! format only.

use std::fmt::{Display, Write};

use tortie_metrics::Histogram;

/// Labels of one sample.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// A metrics page under construction.
#[derive(Debug)]
pub(super) struct Page {
    out: String,
    open: bool,
}

/// A metric family, whose HELP and TYPE lines precede its first sample.
pub(super) struct Family<'p> {
    page: &'p mut Page,
    name: &'p str,
    help: &'p str,
    kind: &'static str,
    headed: bool,
}

impl Page {
    /// Creates an empty page; `open` selects OpenMetrics.
    pub(super) fn new(open: bool) -> Self {
        Self { out: String::with_capacity(64 << 10), open }
    }

    pub(super) fn gauge<'p>(&'p mut self, name: &'p str, help: &'p str) -> Family<'p> {
        self.family(name, help, "gauge")
    }

    /// Begins a counter. Its name ends in `_total`, except on compatible pages.
    pub(super) fn counter<'p>(&'p mut self, name: &'p str, help: &'p str) -> Family<'p> {
        self.family(name, help, "counter")
    }

    pub(super) fn histogram<'p>(&'p mut self, name: &'p str, help: &'p str) -> Family<'p> {
        self.family(name, help, "histogram")
    }

    pub(super) fn summary<'p>(&'p mut self, name: &'p str, help: &'p str) -> Family<'p> {
        self.family(name, help, "summary")
    }

    fn family<'p>(&'p mut self, name: &'p str, help: &'p str, kind: &'static str) -> Family<'p> {
        Family { page: self, name, help, kind, headed: false }
    }

    /// Returns the text of the page.
    pub(super) fn text(mut self) -> String {
        if self.open {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn sample(
        &mut self,
        name: &str,
        suffix: &str,
        labels: &Labels<'_>,
        more: Option<(&str, &str)>,
        value: f64,
    ) {
        self.out.push_str(name);
        self.out.push_str(suffix);
        let mut first = true;
        for (key, value) in labels.iter().copied().chain(more) {
            self.out.push(if first { '{' } else { ',' });
            first = false;
            self.out.push_str(key);
            self.out.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        self.out.push_str(if first { " " } else { "} " });
        self.number(value);
        self.out.push('\n');
    }

    fn number(&mut self, value: f64) {
        if value.is_infinite() {
            self.out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        } else {
            self.write(value);
        }
    }

    fn write(&mut self, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.out, "{value}");
    }
}

impl Family<'_> {
    fn head(&mut self) {
        if std::mem::replace(&mut self.headed, true) {
            return;
        }
        let name = if self.page.open && self.kind == "counter" {
            self.name.strip_suffix("_total").unwrap_or(self.name)
        } else {
            self.name
        };
        let (help, kind) = (self.help, self.kind);
        self.page.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds a sample.
    pub(super) fn put(&mut self, labels: &Labels<'_>, value: f64) -> &mut Self {
        self.head();
        self.page.sample(self.name, "", labels, None, value);
        self
    }

    /// Adds a sample with a count.
    pub(super) fn count(&mut self, labels: &Labels<'_>, value: usize) -> &mut Self {
        self.put(labels, n(value as u64))
    }

    /// Adds a histogram: buckets, or for a summary the quantiles 0.5, 0.9 and 0.99 since the start.
    pub(super) fn observed(&mut self, labels: &Labels<'_>, of: &Histogram) -> &mut Self {
        self.head();
        if self.kind == "summary" {
            for (part, text) in [(0.5, "0.5"), (0.9, "0.9"), (0.99, "0.99")] {
                self.page.sample(self.name, "", labels, Some(("quantile", text)), of.quantile(part));
            }
        } else {
            let mut bound = String::new();
            for (upto, count) in of.buckets() {
                bound.clear();
                if upto.is_infinite() {
                    bound.push_str("+Inf");
                } else {
                    let _ = write!(bound, "{upto}");
                }
                self.page.sample(self.name, "_bucket", labels, Some(("le", &bound)), n(count));
            }
        }
        self.page.sample(self.name, "_sum", labels, None, of.sum());
        self.page.sample(self.name, "_count", labels, None, n(of.count()));
        self
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(super) fn n(value: u64) -> f64 {
    value as f64
}

pub(super) fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Returns the Unix time of a past moment.
pub(super) fn unix_before(ago: std::time::Duration) -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64() - ago.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(open: bool) -> String {
        let mut page = Page::new(open);
        page.gauge("a_seconds", "A").put(&[], 1.5);
        page.gauge("nothing", "N");
        page.counter("b_total", "B").put(&[("x", "a\"\\\n")], 2.0).put(&[("x", "y"), ("z", "")], 3.0);
        let mut times = Histogram::seconds();
        times.observe(31.0);
        page.histogram("c_seconds", "C").observed(&[("l", "m")], &times);
        page.text()
    }

    #[test]
    fn both_formats_have_the_same_samples_and_their_own_heads() {
        let (classic, open) = (page(false), page(true));
        assert!(
            classic
                .starts_with("# HELP a_seconds A\n# TYPE a_seconds gauge\na_seconds 1.5\n# HELP b_total B\n")
        );
        assert!(
            classic.contains(
                "# TYPE b_total counter\nb_total{x=\"a\\\"\\\\\\n\"} 2\nb_total{x=\"y\",z=\"\"} 3\n"
            )
        );
        assert!(!classic.contains("nothing") && !classic.contains("# EOF"));
        assert!(open.contains("# TYPE b counter\nb_total{") && open.ends_with("# EOF\n"));
        assert!(classic.contains("c_seconds_bucket{l=\"m\",le=\"0.0001\"} 0\n"));
        assert!(classic.contains("c_seconds_bucket{l=\"m\",le=\"30\"} 0\n"));
        assert!(classic.contains("c_seconds_bucket{l=\"m\",le=\"+Inf\"} 1\n"));
        assert!(classic.ends_with("c_seconds_sum{l=\"m\"} 31\nc_seconds_count{l=\"m\"} 1\n"));
        let samples =
            |text: &str| text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(samples(&classic), samples(&open));
    }
}
