//! Values of options, from text into types that cannot be wrong.

use std::time::Duration;

use oncelog::Lsn;
use oncelog::broadcast::Resource;

/// A decimal LSN, from 1.
pub(crate) fn lsn(text: &str) -> Result<Lsn, String> {
    let number: u64 =
        text.parse().map_err(|e: std::num::ParseIntError| format!("not a decimal number: {e}"))?;
    Lsn::new(number).ok_or_else(|| "LSNs begin at 1".into())
}

/// `DOMAIN:ID`.
pub(crate) fn scope(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((domain, id)) if !domain.is_empty() && !id.is_empty() => {
            Ok((domain.into(), id.into()))
        }
        _ => Err("expected DOMAIN:ID".into()),
    }
}

/// `DOMAIN:KEY`, or `DOMAIN:KEY:shared`.
pub(crate) fn resource(text: &str) -> Result<Resource, String> {
    let (text, shared) = text.strip_suffix(":shared").map_or((text, false), |text| (text, true));
    match text.split_once(':') {
        Some((domain, key)) if !domain.is_empty() && !key.is_empty() => {
            Ok(Resource { domain: domain.into(), key: key.into(), shared })
        }
        _ => Err("expected DOMAIN:KEY or DOMAIN:KEY:shared".into()),
    }
}

/// A duration such as `30s`.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    oncelog::broadcast::parse_duration(text).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_exclusive_unless_they_say_shared() {
        let shared = resource("collection:42:shared").unwrap();
        assert_eq!((shared.domain.as_str(), shared.key.as_str()), ("collection", "42"));
        assert!(shared.shared);
        assert!(!resource("collection:42").unwrap().shared);
        for wrong in ["", "collection", ":42", "collection:", "collection::shared"] {
            assert!(resource(wrong).is_err(), "{wrong}");
        }
    }
}
