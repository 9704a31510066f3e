//! Count of Tortie's objects that other processes changed, for the report.

/// Number of changed objects, and a description of the first.
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
