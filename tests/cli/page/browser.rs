//! A headless browser, controlled by its DevTools protocol: JSON messages with a zero octet after each, on
//! pipes at its file descriptors 3 and 4.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::concurrency::{LABS, Membership};

/// Timeout for any wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unwanted actions of a page.
#[derive(Debug, Default)]
pub(crate) struct Misdeeds {
    /// Console errors and warnings, exceptions, violations of the content security policy.
    pub(crate) said: Vec<String>,
    /// Requests to other origins.
    pub(crate) asked: Vec<String>,
}

/// A running browser with one tab.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: mpsc::Receiver<Value>,
    reported: VecDeque<Value>,
    next: u64,
    session: String,
    base: String,
    misdeeds: Misdeeds,
    /// Number of requests of the page so far.
    pub(crate) requests: usize,
    _profile: tempfile::TempDir,
    /// A browser uses a whole processor: no demo measures its times meanwhile.
    _group: Membership,
}

/// Returns the path of the browser.
fn program() -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin");
    let peers = std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-headless-shell"];
    std::iter::once(peers)
        .chain(std::env::split_paths(&path))
        .flat_map(|dir| names.map(|name| dir.join(name)))
        .find(|program| program.is_file())
}

impl Browser {
    /// Starts a browser for the page at `base`; `None` without a browser, which is a failure in CI.
    pub(crate) fn start(base: &str) -> Option<Self> {
        let Some(program) = program() else {
            assert!(std::env::var_os("CI").is_none(), "no browser: tests/tools/peers.sh brings one");
            eprintln!("skipped: there is no chromium; tests/tools/peers.sh brings one");
            return None;
        };
        let group = LABS.join();
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(program)
            // It only shows this test's page; as root the browser cannot use its own sandbox.
            .args([
                "--headless",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-extensions",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .env("XDG_CACHE_HOME", profile.path())
            .env("XDG_CONFIG_HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (send, from) = mpsc::channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if send.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            reported: VecDeque::new(),
            next: 0,
            session: String::new(),
            base: base.to_owned(),
            misdeeds: Misdeeds::default(),
            requests: 0,
            _profile: profile,
            _group: group,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session =
            browser.call("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Log", "Runtime", "Page", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        self.to.flush().unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{method}: {e}"));
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.reported.push_back(answer);
        }
    }

    /// Processes the events received so far.
    fn listen(&mut self) {
        while let Ok(message) = self.from.try_recv() {
            self.reported.push_back(message);
        }
        while let Some(message) = self.reported.pop_front() {
            let params = &message["params"];
            match message["method"].as_str().unwrap_or_default() {
                "Log.entryAdded"
                    if params["entry"]["level"] != "info" && params["entry"]["level"] != "verbose" =>
                {
                    self.misdeeds.said.push(params["entry"].to_string());
                }
                "Runtime.exceptionThrown" => self.misdeeds.said.push(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" => self.misdeeds.said.push(params["args"].to_string()),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap_or_default();
                    self.requests += 1;
                    if !url.starts_with(&self.base) && url != "data:," {
                        self.misdeeds.asked.push(url.to_owned());
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the unwanted actions since the last call.
    pub(crate) fn misdeeds(&mut self) -> Misdeeds {
        // A round trip, after which all earlier events have arrived.
        self.eval("0");
        self.listen();
        std::mem::take(&mut self.misdeeds)
    }

    /// Returns the number of requests of the page so far.
    pub(crate) fn requests(&mut self) -> usize {
        self.eval("0");
        self.listen();
        self.requests
    }

    /// Evaluates an expression in the page and waits for promises.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait(&mut self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        while self.eval(&format!("!!({expression})")) != Value::Bool(true) {
            if Instant::now() > end {
                self.shoot("failed");
                let text = self.eval("document.body.innerText");
                panic!("never true: {expression}\n{}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(25));
        }
    }

    /// Waits until the page's text contains `text`.
    #[track_caller]
    pub(crate) fn sees(&mut self, text: &str) {
        self.wait(&format!("document.body.innerText.replace(/\\s+/g, ' ').includes({})", json!(text)));
    }

    /// Opens a location of the page; the first time it loads the page.
    pub(crate) fn go(&mut self, place: &str) {
        let here = self.eval("location.href");
        if here.as_str().is_some_and(|here| here.starts_with(&self.base)) {
            self.eval(&format!("location.hash = {}", json!(place)));
        } else {
            let url = format!("{}{place}", self.base);
            self.call("Page.navigate", json!({ "url": url }));
        }
        self.wait("document.readyState === 'complete' && document.querySelector('main h2')");
    }

    /// Reloads the page.
    pub(crate) fn load(&mut self, place: &str) {
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.go(place);
    }

    /// Sets width and height in pixels, and the dark mode.
    pub(crate) fn look(&mut self, width: u32, height: u32, dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([
            { "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } },
            { "name": "prefers-reduced-motion", "value": if dark { "reduce" } else { "no-preference" } },
        ]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Presses a key: `Enter`, `ArrowRight`, `Tab`, or a letter.
    pub(crate) fn press(&mut self, key: &str) {
        let mut down = json!({ "type": "keyDown", "key": key, "code": key });
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "ArrowRight" => 39,
            "ArrowLeft" => 37,
            "ArrowDown" => 40,
            "ArrowUp" => 38,
            _ => 0,
        };
        if code > 0 {
            down["windowsVirtualKeyCode"] = code.into();
        }
        if key == "Enter" {
            down["text"] = "\r".into();
        } else if key.len() == 1 {
            down["text"] = key.into();
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code }),
        );
    }

    /// Types text into the focused element.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Writes a screenshot to target/page.
    pub(crate) fn shoot(&mut self, name: &str) {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/page");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{name}.png")), base64(answer["data"].as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base64 (RFC 4648, section 4) as the browser writes it.
fn base64(text: &str) -> Vec<u8> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|digit| *digit != b'=').collect();
    let mut out = Vec::with_capacity(digits.len());
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0u32, |bits, digit| (bits << 6) | u32::from(value(*digit)));
        let bits = bits << (6 * (4 - four.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    out
}
