//! SPEC 9: every limit, and what ties them together.
//!
//! All limits are inclusive. They bound what a reader accepts, so none may shrink within a major
//! version.

/// Smallest size in bytes that a segment may be configured to.
pub const SEGMENT_BYTES_MIN: u64 = 65_536;

/// Largest size in bytes that a segment may be configured to.
pub const SEGMENT_BYTES_MAX: u64 = 1_073_741_824;

/// Largest payload of a frame in bytes.
pub const RECORD_LEN_MAX: u32 = 268_435_456;

/// Largest batch in bytes, with the headers and the padding of its frames.
pub const BATCH_BYTES_MAX: u64 = 536_870_912;

/// Largest time in milliseconds since 1970-01-01 UTC: what six bytes hold.
pub const TIME_MS_MAX: u64 = 281_474_976_710_655;

/// Bytes between two entries of a footer's sparse index, at least.
pub const FOOTER_STRIDE_BYTES: u64 = 65_536;

/// Largest footer in bytes.
pub const FOOTER_LEN_MAX: u32 = 393_336;

/// Most cursors of a log.
pub const CURSOR_COUNT_MAX: u32 = 128;

/// Longest name of a cursor in bytes.
pub const CURSOR_NAME_LEN_MAX: u32 = 128;

/// Most properties of a message.
pub const PROPERTY_COUNT_MAX: u32 = 256;

/// Longest key of a property in bytes.
pub const PROPERTY_KEY_LEN_MAX: u32 = 256;

/// Longest value of a property in bytes.
pub const PROPERTY_VALUE_LEN_MAX: u32 = 1_048_576;

/// Longest name of a message type in bytes.
pub const TYPE_NAME_LEN_MAX: u32 = 256;

/// Longest principal, domain, identity or resource key in bytes.
pub const SCOPE_TEXT_LEN_MAX: u32 = 1_024;

/// Most chunks of one message.
pub const CHUNK_COUNT_MAX: u32 = 65_536;

/// Longest trace context in bytes.
pub const TRACE_LEN_MAX: u32 = 1_024;

/// Most fields of a fingerprint.
pub const FINGERPRINT_FIELD_COUNT_MAX: u32 = 256;

/// Longest name of a fingerprint's field in bytes.
pub const FINGERPRINT_NAME_LEN_MAX: u32 = 256;

/// Longest client key in bytes.
pub const CLIENT_KEY_LEN_MAX: u32 = 256;

/// Longest name of a vchannel in bytes.
pub const VCHANNEL_NAME_LEN_MAX: u32 = 256;

/// Most vchannels of one broadcast.
pub const VCHANNEL_COUNT_MAX: u32 = 65_536;

/// Most resource keys of one broadcast.
pub const RESOURCE_COUNT_MAX: u32 = 1_024;

/// Longest text of a control record (a name, a resource key, a path, a reason) in bytes.
pub const TEXT_LEN_MAX: u32 = 65_536;

/// Most source files of one plan.
pub const PLAN_FILE_COUNT_MAX: u32 = 65_536;

/// Most bytes of a checkpoint's stream in one record.
pub const CHECKPOINT_PART_LEN_MAX: u32 = 1_000_000;

/// Most keys that one filter of dropped keys is made for.
pub const FILTER_KEY_COUNT_MAX: u32 = 1_048_576;

/// Where the frames of a segment begin, in bytes.
pub const FRAMES_OFFSET: u64 = 12_288;

/// Alignment of frames and footers in bytes.
pub const ALIGNMENT: u64 = 8;

const _: () = assert!(TIME_MS_MAX == (1 << 48) - 1);
const _: () = assert!(FRAMES_OFFSET.is_multiple_of(ALIGNMENT));
const _: () = assert!(FRAMES_OFFSET < SEGMENT_BYTES_MIN);
const _: () = assert!(SEGMENT_BYTES_MIN < SEGMENT_BYTES_MAX);
// A batch fits in one segment, and a largest record in a batch.
const _: () = assert!(BATCH_BYTES_MAX + FRAMES_OFFSET < SEGMENT_BYTES_MAX);
const _: () = assert!(crate::frame::frame_len(RECORD_LEN_MAX) < BATCH_BYTES_MAX);
// Entries of the first frame, and of one batch a stride from then on.
const FOOTER_ENTRY_COUNT_MAX: u64 = 1 + SEGMENT_BYTES_MAX / FOOTER_STRIDE_BYTES;
const _: () = assert!(FOOTER_ENTRY_COUNT_MAX == 16_385);
const _: () = assert!(FOOTER_LEN_MAX == 96 + 24 * 16_385);
// One copy of every cursor takes as much as its place in the file.
const _: () = assert!(CURSOR_COUNT_MAX * 512 == 65_536);
// Name and fields lie within a sector.
const _: () = assert!(48 + CURSOR_NAME_LEN_MAX <= 508);
// A lag of all ones states nothing, so no batch may need it.
const _: () = assert!(BATCH_BYTES_MAX / 32 < 0xFFFF_FFFF);
