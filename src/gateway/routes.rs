//! Which routes there are: one table, which the description of the interface is held against.

use super::refusal::Refusal;

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Page,
    Alive,
    Ready,
    Metrics,
    Description,
    VectordbCreate,
    VectordbDescribe,
    VectordbList,
    BroadcastCreate,
    BroadcastShow,
    ChannelList,
    ChannelShow,
    ConfigShow,
    JobCreate,
    JobList,
    JobShow,
    JobCancel,
    KeyShow,
    WindowShow,
}

impl Call {
    /// Whether it may wait for an effect.
    pub(crate) fn waits(self) -> bool {
        matches!(
            self,
            Self::VectordbCreate | Self::BroadcastCreate | Self::JobCreate | Self::JobCancel
        )
    }
}

/// A route.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// Parts in braces stand for any one part of a path.
    pub(crate) path: &'static str,
    pub(crate) call: Call,
    /// Whether it consumes an idempotency key.
    pub(crate) takes_key: bool,
}

const fn get(path: &'static str, call: Call) -> Route {
    Route { method: "GET", path, call, takes_key: false }
}

const fn post(path: &'static str, call: Call) -> Route {
    Route { method: "POST", path, call, takes_key: false }
}

const fn keyed(path: &'static str, call: Call) -> Route {
    Route { method: "POST", path, call, takes_key: true }
}

/// Every route.
pub(crate) const ROUTES: &[Route] = &[
    get("/", Call::Page),
    get("/healthz", Call::Alive),
    get("/readyz", Call::Ready),
    get("/metrics", Call::Metrics),
    get("/v1/openapi.json", Call::Description),
    keyed("/v2/vectordb/jobs/import/create", Call::VectordbCreate),
    post("/v2/vectordb/jobs/import/describe", Call::VectordbDescribe),
    post("/v2/vectordb/jobs/import/get_progress", Call::VectordbDescribe),
    post("/v2/vectordb/jobs/import/list", Call::VectordbList),
    keyed("/v1/broadcasts", Call::BroadcastCreate),
    get("/v1/broadcasts/{id}", Call::BroadcastShow),
    get("/v1/channels", Call::ChannelList),
    get("/v1/channels/{vchannel}", Call::ChannelShow),
    get("/v1/config", Call::ConfigShow),
    keyed("/v1/jobs", Call::JobCreate),
    get("/v1/jobs", Call::JobList),
    get("/v1/jobs/{id}", Call::JobShow),
    post("/v1/jobs/{id}/cancel", Call::JobCancel),
    get("/v1/keys", Call::WindowShow),
    get("/v1/keys/{key}", Call::KeyShow),
];

/// What stands at a path.
#[derive(Debug)]
pub(crate) enum Found {
    /// A route, and the part of the path that its braces stand for.
    Route(&'static Route, Option<String>),
    /// Routes of other methods.
    OtherMethod(&'static str),
    /// None.
    Nothing,
}

/// Looks a route up. `HEAD` is answered as `GET` is.
pub(crate) fn find(method: &str, path: &str) -> Found {
    let method = if method == "HEAD" { "GET" } else { method };
    let mut others = (false, false);
    for route in ROUTES {
        let Some(part) = matched(route.path, path) else { continue };
        if route.method != method {
            others = (others.0 || route.method == "GET", others.1 || route.method == "POST");
            continue;
        }
        return match part.map_or(Some(None), |part| decoded(part).map(Some)) {
            Some(part) => Found::Route(route, part),
            None => Found::Nothing,
        };
    }
    match others {
        (true, true) => Found::OtherMethod("GET, HEAD, POST"),
        (true, false) => Found::OtherMethod("GET, HEAD"),
        (false, true) => Found::OtherMethod("POST"),
        (false, false) => Found::Nothing,
    }
}

/// Whether a path is one of a pattern, and what its braces stand for.
fn matched<'a>(pattern: &str, path: &'a str) -> Option<Option<&'a str>> {
    let (mut parts, mut found) = (path.split('/'), None);
    for expected in pattern.split('/') {
        let part = parts.next()?;
        if expected.starts_with('{') {
            found = Some(part).filter(|part| !part.is_empty());
            found?;
        } else if expected != part {
            return None;
        }
    }
    parts.next().is_none().then_some(found)
}

/// The text behind percent encoding; `None` where it is none.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}

/// The value of a name in the query of a request; the first one counts, and an empty one is absent.
///
/// # Errors
///
/// For a value that is no text: it is not to be taken for one that is absent.
pub(crate) fn queried(query: Option<&str>, name: &str) -> Result<Option<String>, Refusal> {
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut values = pairs.filter(|(of, _)| *of == name).map(|(_, value)| value);
    let Some(value) = values.next() else { return Ok(None) };
    let value = decoded(&value.replace('+', " "));
    let value = value.ok_or_else(|| Refusal::invalid(format!("`{name}`: expected a text")))?;
    Ok(Some(value).filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, path: &str, expect: Option<(Call, Option<&str>)>) {
        let found = match find(method, path) {
            Found::Route(route, part) => Some((route.call, part)),
            _ => None,
        };
        let found = found.as_ref().map(|(call, part)| (*call, part.as_deref()));
        assert_eq!(found, expect, "{method} {path}");
    }

    #[test]
    fn a_path_leads_to_its_route_and_to_no_other() {
        check("GET", "/healthz", Some((Call::Alive, None)));
        check("HEAD", "/healthz", Some((Call::Alive, None)));
        check("GET", "/v1/jobs", Some((Call::JobList, None)));
        check("POST", "/v1/jobs", Some((Call::JobCreate, None)));
        check("GET", "/v1/jobs/7", Some((Call::JobShow, Some("7"))));
        check("POST", "/v1/jobs/7/cancel", Some((Call::JobCancel, Some("7"))));
        check("GET", "/v1/keys/a%2Fb%25", Some((Call::KeyShow, Some("a/b%"))));
        for path in ["//", "", "/v1/jobs/", "/v1/jobs/7/", "/v1//jobs", "/healthz/", "/v1/keys/%f"]
        {
            check("GET", path, None);
        }
        check("GET", "/v2/vectordb/jobs/import/create", None);
    }

    #[test]
    fn a_route_of_another_method_says_which_it_has() {
        for (method, path, expect) in [
            ("DELETE", "/v1/jobs", "GET, HEAD, POST"),
            ("POST", "/v1/jobs/7", "GET, HEAD"),
            ("GET", "/v1/broadcasts", "POST"),
        ] {
            match find(method, path) {
                Found::OtherMethod(allow) => assert_eq!(allow, expect),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_query_gives_the_value_of_its_name() {
        let query = Some("a=1&b=x+y%26z&c=&a=2&d");
        assert_eq!(queried(query, "a").unwrap().as_deref(), Some("1"));
        assert_eq!(queried(query, "b").unwrap().as_deref(), Some("x y&z"));
        for absent in ["c", "d", "e"] {
            assert_eq!(queried(query, absent), Ok(None));
        }
        assert_eq!(queried(None, "a"), Ok(None));
        for broken in ["a=%zz", "a=%", "a=%ff", "a=%zz&a=1"] {
            assert!(queried(Some(broken), "a").is_err(), "{broken}");
            assert_eq!(queried(Some(broken), "b"), Ok(None));
        }
    }
}
