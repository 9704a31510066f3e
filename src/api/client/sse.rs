//! Parser of server-sent events (WHATWG HTML 9.2). It does no I/O.

/// A server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Last `id` field, if any.
    pub id: Option<String>,
    /// Value of `event`; empty for the default type.
    pub event: String,
    /// Lines of `data`, joined.
    pub data: String,
}

/// Parses a stream that arrives in pieces of any size.
#[derive(Debug, Default)]
pub struct SseReader {
    rest: Vec<u8>,
    now: SseEvent,
    begun: bool,
}

impl SseReader {
    /// Appends octets and returns the events that they complete.
    pub fn push(&mut self, octets: &[u8]) -> Vec<SseEvent> {
        self.rest.extend_from_slice(octets);
        let mut found = Vec::new();
        while let Some(at) = self.rest.iter().position(|octet| *octet == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=at).collect();
            let line = String::from_utf8_lossy(&line);
            self.line(line.trim_end_matches(['\n', '\r']), &mut found);
        }
        found
    }

    fn line(&mut self, line: &str, found: &mut Vec<SseEvent>) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.now);
            if std::mem::take(&mut self.begun) {
                found.push(event);
            }
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.now.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.now.event),
            "data" => {
                if self.begun && !self.now.data.is_empty() {
                    self.now.data.push('\n');
                }
                self.now.data.push_str(value);
                self.begun = true;
            }
            // Lines that begin with a colon are comments, which servers send as heartbeats.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let text =
            ": heartbeat\n\nid: 7\ndata: {\"a\":1}\n\nevent: reset\r\nid: 9\r\ndata: {}\r\n\r\nid: 10\n\n";
        let expected = [
            SseEvent { id: Some("7".into()), event: String::new(), data: "{\"a\":1}".into() },
            SseEvent { id: Some("9".into()), event: "reset".into(), data: "{}".into() },
        ];
        for size in [1, 3, text.len()] {
            let mut reader = SseReader::default();
            let found: Vec<SseEvent> =
                text.as_bytes().chunks(size).flat_map(|part| reader.push(part)).collect();
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }
}
