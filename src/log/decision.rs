//! The decision table of SPEC section 12: which row a log has reached, from what was looked at.
//!
//! Each function is one stage of the table and total: it answers every combination of what can be
//! found, so that tests walk all of them. Recovery asks the stages in the order in which they
//! stand here. Nothing here reads a byte, or knows how bad a row is.

#![cfg_attr(
    not(any(test, feature = "testing")),
    expect(unreachable_pub, reason = "public to the tests that walk the table")
)]

use std::cmp::Ordering;

/// The label of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    any(test, feature = "testing"),
    expect(missing_docs, reason = "SPEC section 12 says what each is")
)]
#[cfg_attr(
    not(any(test, feature = "testing")),
    expect(dead_code, reason = "recovery concludes some without a row; the tests walk all")
)]
#[expect(clippy::exhaustive_enums, reason = "the table of a format version is whole")]
pub enum Row {
    A,
    B,
    C,
    D,
    E,
    F,
    G,
    H,
    I,
    J,
    K,
    L,
    M,
    N,
    O,
    P,
    Q,
    R,
    S,
    T,
    U,
}

/// What `LOCK` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests walk every value")]
pub enum Identity {
    /// It is absent, short, or zeros.
    Absent,
    /// It holds the UUID of a log.
    Stated,
    /// It holds neither zeros nor a valid content.
    Damaged,
}

/// A directory, before any segment is looked at: rows @A to @C.
#[must_use]
pub const fn of_directory(segments: bool, identity: Identity) -> Option<Row> {
    match (segments, identity) {
        (_, Identity::Damaged) => Some(Row::C),
        (false, Identity::Stated) => Some(Row::B),
        (false, Identity::Absent) => Some(Row::A),
        (true, Identity::Stated | Identity::Absent) => None,
    }
}

/// What stands in the place of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests walk every value")]
pub enum HeaderFound {
    /// A header of this version.
    Valid,
    /// A header whose major or incompat is unknown.
    Unsupported,
    /// Anything else.
    Invalid,
}

/// The begin of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "tests walk every value")]
pub struct Head {
    /// Its header.
    pub header: HeaderFound,
    /// A slot is valid.
    pub slot: bool,
    /// By its name it was trimmed: a segment with a greater number begins at or below the oldest
    /// LSN, and it is none that somebody moved there.
    pub trimmed: bool,
    /// Its name agrees with its header.
    pub named: bool,
    /// Its UUID is that of the log.
    pub ours: bool,
}

/// The begin of one segment: rows @D, @E, @G, and @I where the name alone says which segment it
/// was. `Ok` when none of them decides; true in it when a slot's copy is the header, row @F.
///
/// # Errors
///
/// The row that refuses the segment or leaves it out.
pub const fn of_head(head: Head) -> Result<bool, Row> {
    let (has_header, from_copy) = match head.header {
        HeaderFound::Unsupported => return Err(Row::D),
        HeaderFound::Invalid => (head.slot, head.slot),
        HeaderFound::Valid => (true, false),
    };
    if has_header && head.named && head.ours {
        Ok(from_copy)
    } else if head.trimmed {
        Err(Row::I)
    } else if has_header {
        Err(Row::G)
    } else {
        Err(Row::E)
    }
}

/// Two segments one behind the other, the second compared with the first: row @H.
#[must_use]
pub const fn of_order(number: Ordering, first_lsn: Ordering) -> Option<Row> {
    match (number, first_lsn) {
        (Ordering::Greater, Ordering::Greater | Ordering::Equal) => None,
        _ => Some(Row::H),
    }
}

/// A segment and its successor's first LSN compared with the oldest LSN: row @I.
#[must_use]
pub const fn of_leftover(successor_first: Option<Ordering>) -> Option<Row> {
    match successor_first {
        Some(Ordering::Less | Ordering::Equal) => Some(Row::I),
        Some(Ordering::Greater) | None => None,
    }
}

/// The first LSN of the first segment left compared with the oldest LSN: row @J.
#[must_use]
pub const fn of_begin(first_lsn: Ordering) -> Option<Row> {
    match first_lsn {
        Ordering::Greater => Some(Row::J),
        Ordering::Equal | Ordering::Less => None,
    }
}

/// The footer of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests walk every value")]
pub enum FooterFound {
    /// It is valid and agrees with the segment.
    Agrees,
    /// It is valid and contradicts the segment.
    Contradicts,
    /// It is invalid or absent, and a magic of one stands after the last kept frame.
    Damaged,
    /// It is invalid or absent, and nothing of one stands there.
    Absent,
}

/// How a footer is taken: row @K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests walk every value")]
pub enum FooterTaken {
    /// As it is.
    Held,
    /// Ignored, as damage.
    Degraded,
    /// Ignored: a full disk refused it.
    Refused,
}

/// A sealed segment that was read; `reaches` when its kept frames reach its successor's first LSN:
/// row @L or @M, and row @K beside it.
#[must_use]
pub const fn of_sealed(footer: FooterFound, reaches: bool) -> (Row, FooterTaken) {
    let taken = match footer {
        FooterFound::Agrees => FooterTaken::Held,
        FooterFound::Contradicts | FooterFound::Damaged => FooterTaken::Degraded,
        FooterFound::Absent => FooterTaken::Refused,
    };
    (if reaches { Row::L } else { Row::M }, taken)
}

/// The last segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "tests walk every value")]
#[expect(clippy::struct_excessive_bools, reason = "the predicates of a table")]
pub struct End {
    /// An LSN at or below proven, or below the oldest LSN, is not kept.
    pub missing: bool,
    /// A record is kept.
    pub record: bool,
    /// A slot is valid.
    pub slot: bool,
    /// A valid slot has a counter above 1.
    pub turned: bool,
    /// A valid frame that no frame with the last-of-batch flag follows in order.
    pub open_batch: bool,
    /// A valid footer whose last LSN and end are those of the kept frames.
    pub footer: bool,
    /// A byte that is not zero stands after the last kept frame.
    pub used: bool,
    /// `LOCK` holds a UUID.
    pub identified: bool,
    /// The last record is above proven.
    pub unproven: bool,
}

/// What the last segment amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "tests walk every value")]
#[expect(clippy::struct_excessive_bools, reason = "the rows that add a fact")]
pub struct Ending {
    /// The row that decides: @N, @P, @Q or @R.
    pub row: Row,
    /// Row @O.
    pub cut: bool,
    /// Row @S.
    pub unfinished: bool,
    /// Row @T.
    pub bare: bool,
    /// Row @U.
    pub unproven: bool,
}

/// The last segment: rows @N to @U.
#[must_use]
pub const fn of_end(end: End) -> Ending {
    let missing = end.missing || (!end.record && !end.slot);
    let row = if missing {
        Row::N
    } else if end.open_batch {
        Row::Q
    } else if end.footer {
        Row::P
    } else if end.used {
        Row::Q
    } else {
        Row::R
    };
    Ending {
        row,
        cut: !missing && end.open_batch,
        unfinished: matches!(row, Row::Q | Row::R) && !end.record && !end.identified,
        bare: matches!(row, Row::R) && !end.record && !end.turned,
        unproven: !missing && end.unproven,
    }
}
