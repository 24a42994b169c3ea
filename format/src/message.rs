//! SPEC 13.1: a message is properties and a payload.
