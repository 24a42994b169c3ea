//! LSNs and segment numbers: newtypes without arithmetic operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);
impl Lsn { pub const FIRST: Self; pub const fn new(u64) -> Option<Self> /* not 0 */; pub const fn get(self) -> u64; pub fn next(self) -> Self /* saturating */; pub fn prev(self)->Option<Self>; pub fn checked_add(self, n: u64)->Option<Self> }
