//! SPEC 13.2: one struct per control record.
