//! `docs/reasons.md` is generated from the one enum of reason codes.

use std::path::Path;

#[test]
fn docs_reasons_md_is_what_the_code_says() {
    let mut page = String::from(
        "# Reason codes\n\n\
         Why something is not as asked. Codes are stable: programs may rely on them. A reason comes with the \
         unit it is about, since when it holds, a message with numbers, and a hint.\n\n\
         Generated from `crates/model/src/reason.rs`; `UPDATE_EXPECT=1 cargo test -p tidegate-model` writes it \
         anew.\n\n\
         | code | what it means | what to do |\n|---|---|---|\n",
    );
    for code in model::ALL_CODES {
        page.push_str(&format!("| `{code}` | {} | {} |\n", code.meaning().trim(), code.hint()));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reasons.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, page,
        "docs/reasons.md is out of date: UPDATE_EXPECT=1 cargo test -p tidegate-model"
    );
}
