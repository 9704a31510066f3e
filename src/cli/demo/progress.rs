//! What the demo prints for people: a timeline that fits a terminal of 80 columns.
//!
//! Each line has the time since the start, a step and its outcome; evidence follows, wrapped and indented. On a terminal the step
//! that is under way is shown until its outcome replaces it. Machines (`-o json`) read the report alone: then this prints nothing.

use std::io::IsTerminal;

use crate::cli::output;

/// Columns of a line, one less than a terminal has: some break the line at the last one.
const COLUMNS: usize = 79;
/// Columns of the text of a step: `  0.1s  TEXT FAILED` fills a line.
const STEP: usize = COLUMNS - 8 - 7;
const INDENT: &str = "          ";
/// Returns to the first column and clears the line (ECMA-48 EL).
const CLEAR: &str = "\r\x1b[K";

/// The timeline on standard output.
pub(super) struct Progress {
    /// People read: otherwise nothing is printed.
    people: bool,
    /// Standard output is a terminal, on which a line can be replaced.
    terminal: bool,
}

impl Progress {
    pub(super) fn new(people: bool) -> Self {
        Self { people, terminal: std::io::stdout().is_terminal() }
    }

    /// People read what is printed.
    pub(super) fn is_for_people(&self) -> bool {
        self.people
    }

    /// Prints text that fits.
    pub(super) fn say(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// Shows a step that has begun, until the next line replaces it.
    pub(super) fn waiting(&self, text: &str) {
        if self.terminal {
            self.write(&format!("{:8}{text} ...", ""));
        }
    }

    /// Prints the outcome of a step; `None`: it can only go well.
    pub(super) fn line(&self, seconds: f64, text: &str, ok: Option<bool>) {
        let mark = match ok {
            Some(true) => "ok",
            Some(false) => "FAILED",
            None => "",
        };
        self.say(format!("{seconds:5.1}s  {text:<STEP$} {mark}").trim_end());
    }

    /// Prints what kernels and routers answered.
    pub(super) fn evidence(&self, text: &str) {
        let options = textwrap::Options::new(COLUMNS).initial_indent(INDENT).subsequent_indent(INDENT);
        self.say(&textwrap::fill(text, options));
    }

    fn write(&self, text: &str) {
        if self.people {
            let clear = if self.terminal { CLEAR } else { "" };
            // A reader that is gone ends the demo at the next event of the inner part.
            let _ = output::write_out(&format!("{clear}{text}"));
        }
    }
}
