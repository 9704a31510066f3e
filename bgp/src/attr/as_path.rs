//! AS_PATH attribute (RFC 4271 5.1.2, RFC 5065, RFC 6793): segments, length, prepending, AS4 merge.

use std::fmt;

use super::AS_TRANS_SHORT;

/// Maximum number of ASes in one segment.
const SEGMENT_MAX: u8 = 255;

/// An AS path in the four-octet wire form: segments of type, count and ASes.
///
/// The wire form is compact (two octets per segment besides the ASes), and comparing, hashing and encoding
/// need no conversion. It is validated at construction, so iteration cannot fail.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct AsPath(Box<[u8]>);

/// Type of an AS path segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// AS_SET: unordered.
    Set = 1,
    /// AS_SEQUENCE: ordered, nearest AS first.
    Sequence = 2,
    /// AS_CONFED_SEQUENCE (RFC 5065).
    ConfedSequence = 3,
    /// AS_CONFED_SET (RFC 5065).
    ConfedSet = 4,
}

impl SegmentKind {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Set),
            2 => Some(Self::Sequence),
            3 => Some(Self::ConfedSequence),
            4 => Some(Self::ConfedSet),
            _ => None,
        }
    }

    /// Returns true for the two confederation types (RFC 5065), which must not leave a confederation.
    #[must_use]
    pub fn is_confed(self) -> bool {
        matches!(self, Self::ConfedSequence | Self::ConfedSet)
    }
}

/// One segment of an [`AsPath`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Segment type.
    pub kind: SegmentKind,
    octets: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Iterates over the ASes in wire order.
    pub fn ases(self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + Clone + 'a {
        self.octets.as_chunks::<4>().0.iter().map(|c| u32::from_be_bytes(*c))
    }

    /// Returns the number of ASes: 1 to 255.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    #[must_use]
    pub fn len(self) -> usize {
        self.octets.len() / 4
    }

    /// Returns the contribution to the path length: 1 for an AS_SET (RFC 4271 9.1.2.2 a), 0 for a
    /// confederation segment (RFC 5065 5.3), else the number of ASes.
    #[must_use]
    pub fn hops(self) -> usize {
        match self.kind {
            SegmentKind::Set => 1,
            SegmentKind::Sequence => self.len(),
            SegmentKind::ConfedSequence | SegmentKind::ConfedSet => 0,
        }
    }
}

/// Iterator over the segments of an [`AsPath`].
#[derive(Clone)]
pub struct Segments<'a>(&'a [u8]);

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let [kind, count, rest @ ..] = self.0 else { return None };
        let (octets, rest) = rest.split_at_checked(usize::from(*count) * 4)?;
        self.0 = rest;
        Some(Segment { kind: SegmentKind::from_code(*kind)?, octets })
    }
}

impl AsPath {
    /// Returns a path of one AS_SEQUENCE; more than 255 ASes are split into several segments.
    #[must_use]
    pub fn from_sequence(ases: &[u32]) -> Self {
        Self::from_segments([(SegmentKind::Sequence, ases)])
    }

    /// Returns a path of these segments. Empty segments are dropped, and segments of more than 255 ASes are
    /// split.
    #[must_use]
    pub fn from_segments<'s>(segments: impl IntoIterator<Item = (SegmentKind, &'s [u32])>) -> Self {
        let mut out = Vec::new();
        for (kind, ases) in segments {
            for chunk in ases.chunks(usize::from(SEGMENT_MAX)) {
                push_header(&mut out, kind, chunk.len());
                out.extend(chunk.iter().flat_map(|a| a.to_be_bytes()));
            }
        }
        Self(out.into_boxed_slice())
    }

    /// Wraps octets that the caller has validated: whole segments of known types, none empty.
    pub(crate) fn from_checked(octets: Box<[u8]>) -> Self {
        Self(octets)
    }

    /// Returns the four-octet wire form.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Iterates over the segments in wire order.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments(&self.0)
    }

    /// Iterates over the ASes of all segments in wire order.
    pub fn ases(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.segments().flat_map(Segment::ases)
    }

    /// Returns true for a path without segments: a route of the local AS.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path length for the decision process: an AS_SET counts as 1, confederation segments as 0.
    #[must_use]
    pub fn hops(&self) -> usize {
        self.segments().map(Segment::hops).sum()
    }

    /// Returns the number of occurrences of an AS in all segments.
    #[must_use]
    pub fn count(&self, asn: u32) -> usize {
        self.ases().filter(|a| *a == asn).count()
    }

    /// Returns true if the AS occurs in any segment.
    #[must_use]
    pub fn contains(&self, asn: u32) -> bool {
        self.ases().any(|a| a == asn)
    }

    /// Returns the neighbouring AS: the first AS of the first segment, if that is an AS_SEQUENCE (RFC 4271
    /// 9.1.2.2 c).
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        let first = self.segments().next()?;
        if first.kind == SegmentKind::Sequence { first.ases().next() } else { None }
    }

    /// Returns the originating AS: the last AS of the last segment, if that is an AS_SEQUENCE.
    #[must_use]
    pub fn origin(&self) -> Option<u32> {
        let last = self.segments().last()?;
        if last.kind == SegmentKind::Sequence { last.ases().next_back() } else { None }
    }

    /// Returns true if a segment is an AS_SET or AS_CONFED_SET (RFC 9774).
    #[must_use]
    pub fn has_set(&self) -> bool {
        self.segments().any(|s| matches!(s.kind, SegmentKind::Set | SegmentKind::ConfedSet))
    }

    /// Returns this path with `asn` prepended `times` times. If the first segment is full, a new one is added
    /// (RFC 4271 5.1.2).
    #[must_use]
    pub fn prepend(&self, asn: u32, times: usize) -> Self {
        let first = self.segments().next().filter(|s| s.kind == SegmentKind::Sequence);
        let room = first.map_or(0, |s| usize::from(SEGMENT_MAX).saturating_sub(s.len()));
        let joined = times.min(room);
        let mut out =
            Vec::with_capacity(self.0.len() + times * 4 + 2 * (1 + times / usize::from(SEGMENT_MAX)));
        let mut fresh = times - joined;
        // A partly filled new segment goes first, so that a later prepend has room.
        while fresh > 0 {
            let n = match fresh % usize::from(SEGMENT_MAX) {
                0 => usize::from(SEGMENT_MAX),
                n => n,
            };
            push_header(&mut out, SegmentKind::Sequence, n);
            out.extend(std::iter::repeat_n(asn.to_be_bytes(), n).flatten());
            fresh -= n;
        }
        match first {
            Some(first) if joined > 0 => {
                push_header(&mut out, SegmentKind::Sequence, first.len() + joined);
                out.extend(std::iter::repeat_n(asn.to_be_bytes(), joined).flatten());
                out.extend_from_slice(self.0.get(2..).unwrap_or_default());
            }
            _ => out.extend_from_slice(&self.0),
        }
        Self(out.into_boxed_slice())
    }

    /// Returns true if every AS fits into two octets.
    pub(crate) fn fits_two_octets(&self) -> bool {
        self.ases().all(|a| a <= u32::from(u16::MAX))
    }

    /// Merges AS_PATH (`self`) of a two-octet speaker with its AS4_PATH (`as4`) by RFC 6793 4.2.3. AS4_PATH
    /// replaces the end of the path that it covers. An AS4_PATH longer than the AS_PATH is ignored.
    #[must_use]
    pub(crate) fn merge_as4(&self, as4: &Self) -> Self {
        let (have, tail) = (self.hops(), as4.hops());
        if tail > have || as4.is_empty() {
            return self.clone();
        }
        let mut lead = have - tail;
        let mut out = Vec::with_capacity(self.0.len() + as4.0.len());
        for segment in self.segments() {
            // Confederation segments precede the part that AS4_PATH covers, and have length 0.
            if lead == 0 && !segment.kind.is_confed() {
                break;
            }
            match segment.kind {
                SegmentKind::Sequence => {
                    let n = segment.len().min(lead);
                    push_header(&mut out, segment.kind, n);
                    out.extend(segment.ases().take(n).flat_map(u32::to_be_bytes));
                    lead -= n;
                }
                _ => {
                    push_header(&mut out, segment.kind, segment.len());
                    out.extend_from_slice(segment.octets);
                    lead -= segment.hops();
                }
            }
        }
        join(&mut out, as4);
        Self(out.into_boxed_slice())
    }

    /// Appends the two-octet wire form, with AS_TRANS for an AS above 65,535.
    pub(crate) fn write_two_octets(&self, out: &mut Vec<u8>) {
        for segment in self.segments() {
            push_header(out, segment.kind, segment.len());
            for asn in segment.ases() {
                let short = u16::try_from(asn).unwrap_or(AS_TRANS_SHORT);
                out.extend_from_slice(&short.to_be_bytes());
            }
        }
    }
}

/// Appends `tail` to the segments in `out`. Two adjacent AS_SEQUENCEs are joined if the result has at most
/// 255 ASes.
fn join(out: &mut Vec<u8>, tail: &AsPath) {
    let mut last = None;
    let mut at = 0;
    for s in Segments(out) {
        last = Some((at, s.kind, s.len()));
        at += 2 + s.octets.len();
    }
    let first = tail.segments().next();
    if let (Some((at, SegmentKind::Sequence, n)), Some(first)) = (last, first)
        && first.kind == SegmentKind::Sequence
        && let Ok(sum) = u8::try_from(n + first.len())
    {
        if let Some(count) = out.get_mut(at + 1) {
            *count = sum;
        }
        out.extend_from_slice(tail.0.get(2..).unwrap_or_default());
        return;
    }
    out.extend_from_slice(&tail.0);
}

/// Appends type and count of a segment. All callers pass 1 to 255 ASes.
fn push_header(out: &mut Vec<u8>, kind: SegmentKind, ases: usize) {
    out.push(kind as u8);
    out.push(u8::try_from(ases).unwrap_or(SEGMENT_MAX));
}

impl fmt::Display for AsPath {
    /// Writes `64496 64497 {64498,64499}`; AS_CONFED_SEQUENCE in parentheses, AS_CONFED_SET in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.segments().enumerate() {
            let (open, separator, close) = match segment.kind {
                SegmentKind::Sequence => ("", " ", ""),
                SegmentKind::Set => ("{", ",", "}"),
                SegmentKind::ConfedSequence => ("(", " ", ")"),
                SegmentKind::ConfedSet => ("[", ",", "]"),
            };
            f.write_str(if i == 0 { "" } else { " " })?;
            f.write_str(open)?;
            for (j, asn) in segment.ases().enumerate() {
                f.write_str(if j == 0 { "" } else { separator })?;
                write!(f, "{asn}")?;
            }
            f.write_str(close)?;
        }
        Ok(())
    }
}

impl fmt::Debug for AsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsPath({self})")
    }
}
