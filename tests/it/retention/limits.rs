//! Limits on bytes, segments and age.
