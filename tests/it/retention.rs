//! What a trim drops, what holds it up, and what is left of the files.

mod pins;
