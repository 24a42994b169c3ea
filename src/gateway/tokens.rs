//! Who may ask, and in whose name.
//!
//! A token is kept as its digest alone. Every presented one is compared with all of them, so that
//! the time of an answer says nothing about which one it was near.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use oncelog_format::limits::SCOPE_TEXT_LEN_MAX;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::error::{Error, ErrorKind, Result};

/// The principal of a token that names none.
const DEFAULT_PRINCIPAL: &str = "default";

/// Most tokens: each of them is compared at every request.
const TOKEN_COUNT_MAX: u32 = 1024;

/// The digest of a token, and its principal.
type Known = ([u8; 32], Arc<str>);

/// The tokens that are known, each with its principal. Clones are one: what replaces the tokens of
/// one of them replaces those of all.
#[derive(Clone)]
pub struct Tokens {
    known: Arc<RwLock<Arc<[Known]>>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.known().len())
    }
}

impl Tokens {
    /// Reads tokens, one a line, each with its principal behind a space (`default` where there is
    /// none); empty lines, and lines that begin with `#`, are skipped.
    ///
    /// # Errors
    ///
    /// `InvalidInput` with the number of the line, never with what it holds: for bytes other than
    /// visible ASCII in a token, more than a principal behind it, a token that stands there twice,
    /// and where no token stands at all.
    pub fn parse(text: &str) -> Result<Self> {
        let mut known: Vec<Known> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |what: &str| {
                let what = format!("line {} of the tokens: {what}", at.saturating_add(1));
                Err(Error::new(ErrorKind::InvalidInput, what))
            };
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (token, principal) = line.split_once(' ').unwrap_or((line, DEFAULT_PRINCIPAL));
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return wrong("expected a token of visible ASCII");
            }
            let is_word = |byte: u8| byte.is_ascii_graphic();
            let len_max = usize::try_from(SCOPE_TEXT_LEN_MAX).unwrap_or(usize::MAX);
            if principal.is_empty() || !principal.bytes().all(is_word) || principal.len() > len_max
            {
                return wrong("expected a principal of visible ASCII behind one space");
            }
            let digest = digest(token.as_bytes());
            if known.iter().any(|(other, _)| *other == digest) {
                return wrong("the token stands there twice");
            }
            known.push((digest, principal.into()));
        }
        match u32::try_from(known.len()) {
            Ok(1..=TOKEN_COUNT_MAX) => Ok(Self { known: Arc::new(RwLock::new(known.into())) }),
            _ => {
                let what = format!("expected 1 to {TOKEN_COUNT_MAX} tokens, found {}", known.len());
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
        }
    }

    /// Takes the tokens of another one, in place of its own, from the next request on: also of a
    /// connection that stays. A gateway that has a clone needs no restart.
    ///
    /// # Examples
    ///
    /// ```
    /// use oncelog::gateway::{Gateway, Tokens};
    ///
    /// # fn main() -> oncelog::Result<()> {
    /// let tokens = Tokens::parse("a-token billing")?;
    /// let gateway = Gateway::bind(([127, 0, 0, 1], 0).into(), tokens.clone())?;
    /// // Where `a-token` is not to be trusted any more:
    /// tokens.replace(&Tokens::parse("another-token billing")?);
    /// # drop(gateway);
    /// # Ok(())
    /// # }
    /// ```
    pub fn replace(&self, others: &Self) {
        let others = others.known();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = others;
    }

    fn known(&self) -> Arc<[Known]> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The principal of a token.
    pub(crate) fn principal_of(&self, token: &[u8]) -> Option<Arc<str>> {
        let (presented, all) = (digest(token), self.known());
        let mut place = u32::MAX;
        for (number, (known, _)) in (0..).zip(all.iter()) {
            let is_same: Choice = presented.as_slice().ct_eq(known.as_slice());
            place = u32::conditional_select(&place, &number, is_same);
        }
        let (_, principal) = all.get(usize::try_from(place).ok()?)?;
        Some(Arc::clone(principal))
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_speaks_for_its_principal_and_no_other_does() {
        let tokens = Tokens::parse("# of the night\nroot:Milvus\n\nsecret etl\nother etl\r\n");
        let tokens = tokens.unwrap();
        let of = |token: &str| tokens.principal_of(token.as_bytes());
        assert_eq!(of("root:Milvus").as_deref(), Some("default"));
        assert_eq!(of("secret").as_deref(), Some("etl"));
        assert_eq!(of("other").as_deref(), Some("etl"));
        for wrong in ["", "secre", "secret ", "secret etl", "Secret", "# of the night"] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
        assert!(!format!("{tokens:?}").contains("secret"));
    }

    #[test]
    fn tokens_that_replace_others_do_so_for_every_clone() {
        let tokens = Tokens::parse("old a\nkept a").unwrap();
        let clone = tokens.clone();
        tokens.replace(&Tokens::parse("kept b\nnew c").unwrap());
        let of = |token: &str| clone.principal_of(token.as_bytes());
        assert_eq!((of("old"), of("kept").as_deref()), (None, Some("b")));
        assert_eq!(of("new").as_deref(), Some("c"));
        clone.replace(&tokens);
        assert_eq!(of("new").as_deref(), Some("c"));
    }

    #[test]
    fn a_line_that_is_none_is_named_by_its_number_alone() {
        for (text, expect) in [
            ("", "found 0"),
            ("# no token\n", "found 0"),
            ("a\n b\n", "line 2"),
            ("hidden two words\n", "line 1"),
            ("hid\u{7}den\n", "line 1"),
            ("hidden\nhidden other\n", "line 2"),
        ] {
            let told = Tokens::parse(text).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(told.contains(expect) && !told.contains("hidden"), "{text:?}: {told}");
        }
    }
}
