//! How much of ours others changed, for the report of it.

/// Something that somebody else did to our objects.
#[derive(Debug, Default)]
pub(crate) struct External {
    pub(crate) objects: usize,
    pub(crate) first: Option<String>,
}

impl External {
    pub(crate) fn note(&mut self, objects: usize, words: impl FnOnce() -> String) {
        if objects > 0 {
            self.objects += objects;
            self.first.get_or_insert_with(words);
        }
    }
}
