//! Values from the documents, and the laws of reading and writing.
