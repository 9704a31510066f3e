//! How much of ours others changed, for the report of it.

/// Something that another process did to our objects.
#[derive(Debug, Default)]
pub(crate) struct ForeignChanges {
    pub(crate) objects: usize,
    pub(crate) first: Option<String>,
}

impl ForeignChanges {
    pub(crate) fn note(&mut self, objects: usize, words: impl FnOnce() -> String) {
        if objects > 0 {
            self.objects += objects;
            self.first.get_or_insert_with(words);
        }
    }
}
