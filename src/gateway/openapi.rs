//! The description of the interface, in OpenAPI 3.1: a document that stands beside the routes and is
//! held against them.

/// The document.
pub(crate) const TEXT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::TEXT;
    use crate::gateway::refusal::Row;
    use crate::gateway::routes::ROUTES;

    fn document() -> Value {
        serde_json::from_str(TEXT).unwrap()
    }

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let document = document();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let names = operation["parameters"].as_array().cloned().unwrap_or_default();
                let has_key = names.iter().any(|name| name["name"] == "Idempotency-Key");
                described.insert((method.to_uppercase(), path.clone(), has_key));
                let answers = operation["responses"].as_object().unwrap();
                let is_open = operation["security"] == serde_json::json!([]);
                assert_eq!(answers.contains_key("401"), !is_open, "{method} {path}");
                assert_eq!(
                    names.iter().filter(|name| name["in"] == "path").count(),
                    path.matches('{').count(),
                    "{method} {path}"
                );
            }
        }
        let routes = ROUTES.iter();
        let routes = routes.map(|of| (of.method.to_owned(), of.path.to_owned(), of.takes_key));
        assert_eq!(described, routes.collect());
    }

    /// The texts or numbers that a schema lists.
    fn listed(schema: &Value) -> BTreeSet<String> {
        let text = |one: &Value| one.as_str().map_or_else(|| one.to_string(), str::to_owned);
        schema["enum"].as_array().unwrap().iter().map(text).collect()
    }

    #[test]
    fn every_kind_of_refusal_is_described() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let kinds = Row::ALL.iter().map(|row| format!("urn:oncelog:problem:{}", row.slug));
        assert_eq!(listed(&schemas["Problem"]["properties"]["type"]), kinds.collect());
        let codes = Row::ALL.iter().map(|row| row.code.to_string()).chain(["0".to_owned()]);
        assert_eq!(listed(&schemas["Coded"]["properties"]["code"]), codes.collect());
        // What a route answers with is a kind of refusal, or good.
        let statuses: BTreeSet<String> =
            Row::ALL.iter().map(|row| row.status.to_string()).collect();
        for methods in document["paths"].as_object().unwrap().values() {
            for operation in methods.as_object().unwrap().values() {
                for status in operation["responses"].as_object().unwrap().keys() {
                    let is_good = ["200", "201"].contains(&status.as_str());
                    assert!(is_good || statuses.contains(status), "{status}");
                }
            }
        }
    }
}
