//! The committed OpenAPI document.

use std::path::Path;

#[test]
fn the_committed_document_is_the_one_that_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let mut served = serde_json::to_string_pretty(&server::openapi()).unwrap();
    served.push('\n');
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &served).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == served, "docs/openapi.json is out of date: run this test with UPDATE_EXPECT=1");
}
